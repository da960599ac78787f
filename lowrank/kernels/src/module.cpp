// The Python module `lowrank.kernels._core`: checks shapes, picks the instruction set, deals the
// work out to threads with the interpreter lock released.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "parallel.hpp"

namespace nb = nanobind;

namespace {

using namespace lowrank;

template <class T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The tables this machine can run, best last.
std::vector<const KernelTable*> supported_tables() {
    std::vector<const KernelTable*> tables{&baseline_kernels};
#ifdef LOWRANK_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        tables.push_back(&avx512_kernels);
#endif
    return tables;
}

const KernelTable* active = supported_tables().back();

void use(const std::string& name) {
    for (const KernelTable* table : supported_tables())
        if (name == table->name) {
            active = table;
            return;
        }
    throw std::invalid_argument("This machine cannot run the '" + name + "' kernels.");
}

std::vector<std::string> supported() {
    std::vector<std::string> names;
    for (const KernelTable* table : supported_tables()) names.emplace_back(table->name);
    return names;
}

template <class T>
const Kernels<T>& kernels() {
    if constexpr (sizeof(T) == 4) return active->f32;
    else return active->f64;
}

void require(bool ok, const char* message) {
    if (!ok) throw std::invalid_argument(message);
}

template <class T>
Csr<T> csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<T>& data,
           std::int64_t n_rows, std::int64_t n_cols) {
    require(static_cast<std::int64_t>(indptr.size()) == n_rows + 1, "indptr must have one entry more than rows");
    require(indices.size() == data.size(), "indices and data must have the same length");
    require(indptr.data()[0] == 0 && indptr.data()[n_rows] == static_cast<std::int64_t>(data.size()),
            "indptr must run from 0 to the number of stored entries");
    return {indptr.data(), indices.data(), data.data(), n_rows, n_cols};
}

struct AlignedDelete {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t{64}); }
};

template <class T>
void als_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<T> data, In2<T> other,
                    In1<T> other_bias, double shift, In1<T> penalty, In1<T> bias_penalty, bool fit_bias,
                    Out2<T> factors, Out1<T> bias, Out1<double> objective, int threads) {
    const std::int64_t n_rows = factors.shape(0), n_cols = other.shape(0);
    require(factors.shape(1) == other.shape(1), "factors and other must have the same number of columns");
    require(static_cast<std::int64_t>(other_bias.size()) == n_cols, "other_bias must have one entry per row of other");
    for (std::size_t size : {penalty.size(), bias_penalty.size(), bias.size(), objective.size()})
        require(static_cast<std::int64_t>(size) == n_rows, "penalties, bias and objective must have one entry per row");
    const AlsProblem<T> problem{csr<T>(indptr, indices, data, n_rows, n_cols), other.data(), other_bias.data(),
                                penalty.data(), bias_penalty.data(), factors.data(), bias.data(),
                                objective.data(), shift, static_cast<std::int64_t>(other.shape(1)), fit_bias};
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    RowQueue queue(problem.ratings.indptr, n_rows, active->batch_rows, threads);
    on_threads(threads, [&](int) {
        const std::unique_ptr<void, AlignedDelete> workspace(
            ::operator new(kernel.als_workspace(problem.k), std::align_val_t{64}));
        for (std::int64_t begin, end; queue.next(begin, end);)
            kernel.als_rows(problem, begin, end, workspace.get());
    });
}

template <class T>
void csr_matmat(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<T> data, In2<T> X, Out2<T> Y, int threads) {
    const Csr<T> A = csr<T>(indptr, indices, data, Y.shape(0), X.shape(0));
    require(X.shape(1) == Y.shape(1), "X and Y must have the same number of columns");
    const std::int64_t width = X.shape(1);
    const nb::gil_scoped_release release;
    RowQueue queue(A.indptr, A.n_rows, 16, threads);
    on_threads(threads, [&](int) {
        for (std::int64_t begin, end; queue.next(begin, end);)
            kernels<T>().matmat_rows(A, X.data(), width, Y.data(), begin, end);
    });
}

// Column boundaries that give each thread about the same number of non-zeros.
template <class T>
std::vector<std::int64_t> column_shares(const Csr<T>& A, int threads) {
    std::vector<std::int64_t> bounds{0};
    if (threads > 1) {
        std::vector<std::int64_t> count(A.n_cols, 0);
        const std::int64_t nnz = A.indptr[A.n_rows];
        for (std::int64_t p = 0; p < nnz; ++p) ++count[A.indices[p]];
        std::int64_t seen = 0;
        for (std::int64_t j = 0; j < A.n_cols && static_cast<int>(bounds.size()) < threads; ++j) {
            seen += count[j];
            if (seen * threads >= nnz * static_cast<std::int64_t>(bounds.size())) bounds.push_back(j + 1);
        }
    }
    while (static_cast<int>(bounds.size()) <= threads) bounds.push_back(A.n_cols);
    return bounds;
}

template <class T>
void csr_rmatmat(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<T> data, In2<T> X, Out2<T> Y, int threads) {
    const Csr<T> A = csr<T>(indptr, indices, data, X.shape(0), Y.shape(0));
    require(X.shape(1) == Y.shape(1), "X and Y must have the same number of columns");
    const std::int64_t width = X.shape(1);
    const nb::gil_scoped_release release;
    // Each thread owns a range of the result's rows, so the order of summation, and with it
    // every bit of the result, is the same on any number of threads.
    const std::vector<std::int64_t> bounds = column_shares(A, threads);
    on_threads(threads, [&](int number) {
        kernels<T>().rmatmat_cols(A, X.data(), width, Y.data(), bounds[number], bounds[number + 1]);
    });
}

// A basis may be the first columns of a wider array: rows are contiguous, their stride is free.
template <class T>
using InRows = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;

template <class T>
void check_basis(const InRows<T>& V, std::int64_t n) {
    require(V.shape(1) == 0 || V.stride(1) == 1, "the rows of V must be contiguous");
    require(static_cast<std::int64_t>(V.shape(0)) == n, "V and W must have the same number of rows");
}

// The rows are always cut into the same parts, whose sums are added in order: the number of
// threads changes no bit.
template <class T>
void coefficients(InRows<T> V, In2<T> W, Out2<T> P, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), size = V.shape(1);
    check_basis(V, n);
    require(static_cast<std::int64_t>(P.shape(0)) == size && static_cast<std::int64_t>(P.shape(1)) == width,
            "P must have shape (columns of V, columns of W)");
    const nb::gil_scoped_release release;
    const std::int64_t parts = std::clamp<std::int64_t>(n / 1024, 1, 32), cells = size * width;
    std::vector<T> sums(parts * cells);
    std::atomic<std::int64_t> next{0};
    on_threads(threads, [&](int) {
        for (std::int64_t part; (part = next++) < parts;)
            kernels<T>().coefficient_rows(V.data(), V.stride(0), size, W.data(), width, &sums[part * cells],
                                          n * part / parts, n * (part + 1) / parts);
    });
    for (std::int64_t cell = 0; cell < cells; ++cell) {
        double sum = 0;
        for (std::int64_t part = 0; part < parts; ++part) sum += sums[part * cells + cell];
        P.data()[cell] = static_cast<T>(sum);
    }
}

template <class T>
void subtract(InRows<T> V, In2<T> H, Out2<T> W, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1);
    check_basis(V, n);
    require(H.shape(0) == V.shape(1) && H.shape(1) == W.shape(1),
            "H must have shape (columns of V, columns of W)");
    const nb::gil_scoped_release release;
    constexpr std::int64_t rows = 1024;
    std::atomic<std::int64_t> next{0};
    on_threads(threads, [&](int) {
        for (std::int64_t begin; (begin = rows * next++) < n;)
            kernels<T>().subtract_rows(V.data(), V.stride(0), V.shape(1), H.data(), width, W.data(), begin,
                                       std::min(begin + rows, n));
    });
}

template <class T>
void add_kernels(nb::module_& m) {
    // noconvert: a silent copy of an output would lose the result, of an input the time.
    m.def("als_half_sweep", &als_half_sweep<T>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("data").noconvert(), nb::arg("other").noconvert(), nb::arg("other_bias").noconvert(),
          nb::arg("shift"), nb::arg("penalty").noconvert(), nb::arg("bias_penalty").noconvert(),
          nb::arg("fit_bias"), nb::arg("factors").noconvert(), nb::arg("bias").noconvert(),
          nb::arg("objective").noconvert(), nb::arg("threads"));
    m.def("csr_matmat", &csr_matmat<T>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("data").noconvert(), nb::arg("X").noconvert(), nb::arg("Y").noconvert(), nb::arg("threads"));
    m.def("csr_rmatmat", &csr_rmatmat<T>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("data").noconvert(), nb::arg("X").noconvert(), nb::arg("Y").noconvert(), nb::arg("threads"));
    m.def("coefficients", &coefficients<T>, nb::arg("V").noconvert(), nb::arg("W").noconvert(),
          nb::arg("P").noconvert(), nb::arg("threads"));
    m.def("subtract", &subtract<T>, nb::arg("V").noconvert(), nb::arg("H").noconvert(), nb::arg("W").noconvert(),
          nb::arg("threads"));
}

}  // namespace

NB_MODULE(_core, m) {
    m.def("use", &use, nb::arg("name"));
    m.def("supported", &supported);
    m.def("active", [] { return std::string(active->name); });
    add_kernels<float>(m);
    add_kernels<double>(m);
}
