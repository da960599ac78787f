// Entry points of products with sparse matrices (spmm.hpp) and of orthonormal bases (basis.hpp).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings.hpp"
#include "entries.hpp"
#include "parallel.hpp"

namespace lowrank {

namespace {

template <class T>
void csr_entries(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<T> out_of, In2<T> left, In2<T> right,
                 Out1<T> out, int threads) {
    const Csr<T> A = csr<T>(indptr, indices, out_of, left.shape(0), right.shape(0));
    require(left.shape(1) == right.shape(1) && left.shape(1) > 0, "left and right must have the same number of columns");
    require(out.size() == indices.size(), "out must have one number per entry");
    const std::int64_t k = static_cast<std::int64_t>(left.shape(1)) - 1;
    const nb::gil_scoped_release release;
    on_rows(A.indptr, A.n_rows, 1, threads, 0, [&](auto begin, auto end, void*) {
        kernels<T>().entry_rows(A, left.data(), right.data(), k, out.data(), begin, end);
    });
}

template <class T>
void csr_matmat(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> X, Out2<T> Y, int threads) {
    const In1<T>* values = std::get_if<In1<T>>(&data);
    Csr<T> A;
    if (values && values->size() == 1) {  // the value of all entries
        check_offsets(indptr, indices.size(), indices.size(), Y.shape(0));
        A = {indptr.data(), indices.data(), nullptr, static_cast<std::int64_t>(Y.shape(0)),
             static_cast<std::int64_t>(X.shape(0)), nullptr, values->data()};
    } else {
        A = csr<T>(indptr, indices, data, Y.shape(0), X.shape(0));
    }
    require(X.shape(1) == Y.shape(1), "X and Y must have the same number of columns");
    const std::int64_t width = X.shape(1), panel = 128 / sizeof(T);
    const nb::gil_scoped_release release;
    // Two cache lines of each row of X at once, so that rows of the next entries are more likely to be in a cache. If
    // each row is read several times, they are copied next to each other first.
    const bool copied = width > panel && A.indptr[A.n_rows] >= 4 * A.n_cols;
    const auto memory = aligned_memory(copied ? A.n_cols * panel * sizeof(T) : 0);
    for (std::int64_t j = 0; j < width; j += panel) {
        const std::int64_t columns = std::min(panel, width - j);
        const T* from = X.data() + j;
        T* const copy = static_cast<T*>(memory.get());
        if (copied)
            on_ranges(A.n_cols, 2048, threads, 0, [&](auto begin, auto end, void*) {
                for (auto row = begin; row < end; ++row) std::copy_n(from + row * width, columns, copy + row * columns);
            });
        on_rows(A.indptr, A.n_rows, 16, threads, 0, [&](auto begin, auto end, void*) {
            kernels<T>().matmat_rows(A, copied ? copy : from, copied ? columns : width, columns, Y.data() + j, width,
                                     begin, end);
        });
    }
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
void csr_rmatmat(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> X, Out2<T> Y, int threads) {
    const Csr<T> A = csr<T>(indptr, indices, data, X.shape(0), Y.shape(0));
    require(X.shape(1) == Y.shape(1), "X and Y must have the same number of columns");
    const std::int64_t width = X.shape(1);
    const nb::gil_scoped_release release;
    // Each thread owns a range of the result's rows, so the order of summation, and with it
    // every bit of the result, is the same on any number of threads.
    threads = entries::threads_for_columns(A.indptr, A.indices, A.n_rows, threads);
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
    require(V.size() == 0 || V.shape(1) == 1 || V.stride(1) == 1, "the rows of V must be contiguous");
    require(static_cast<std::int64_t>(V.shape(0)) == n, "V and W must have the same number of rows");
}

// A basis in panels: some columns, then others. Panels that are contiguous are read as fast as memory allows, where the
// rows of one wide array would be too far apart.
template <class T>
using Panels = std::vector<InRows<T>>;

// The columns of a panel, and the number of columns before it.
template <class T>
struct Panel {
    const T* rows;
    std::int64_t stride, size, before;
};

template <class T>
std::vector<Panel<T>> panels_of(const Panels<T>& V, std::int64_t n) {
    std::vector<Panel<T>> panels;
    std::int64_t before = 0;
    for (const InRows<T>& columns : V) {
        check_basis(columns, n);
        const std::int64_t size = columns.shape(1);
        panels.push_back({columns.data(), columns.stride(0), size, before});
        before += size;
    }
    return panels;
}

// `cells` sums over n rows, where add(sum, begin, end) adds those of some rows. The rows are always cut into the same
// parts, whose sums are added in order, so that results do not depend on the number of threads.
template <class T, class Add>
std::vector<double> sums_over_rows(std::int64_t n, std::int64_t cells, int threads, const Add& add) {
    const std::int64_t parts = std::clamp<std::int64_t>(n / 1024, 1, 32);
    const auto sums = std::make_unique<T[]>(parts * cells);
    on_ranges(parts, 1, threads, 0, [&](auto part, auto following, void*) {
        add(&sums[part * cells], n * part / parts, n * following / parts);
    });
    std::vector<double> total(cells);
    for (std::int64_t part = 0; part < parts; ++part)
        for (std::int64_t cell = 0; cell < cells; ++cell) total[cell] += sums[part * cells + cell];
    return total;
}

template <class T>
void coefficients(InRows<T> V, In2<T> W, Out2<T> P, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), size = V.shape(1);
    check_basis(V, n);
    require(static_cast<std::int64_t>(P.shape(0)) == size && static_cast<std::int64_t>(P.shape(1)) == width,
            "P must have shape (columns of V, columns of W)");
    const nb::gil_scoped_release release;
    const auto total = sums_over_rows<T>(n, size * width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
        kernels<T>().coefficient_rows(V.data(), V.stride(0), size, W.data(), width, sum, begin, end);
    });
    std::transform(total.begin(), total.end(), P.data(), [](double sum) { return static_cast<T>(sum); });
}

template <class T>
std::unique_ptr<T[]> packed_columns(const T* H, std::int64_t size, std::int64_t width, T factor) {
    auto packed = std::make_unique_for_overwrite<T[]>(size * width);
    kernels<T>().pack_columns(H, size, width, factor, packed.get());
    return packed;
}

// W -= V V' W with the panels of V from `first` on and, with `again`, once more with all panels. `inside` receives the
// coefficients of V, and `gram` the resulting W' W. Each pass computes the sums of the next one while the rows are in
// the cache.
template <class T>
void project(const Panels<T>& V, std::size_t first, bool again, Out2<T> W, Out2<double> inside, Out2<double> gram,
             int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), step = 240;
    const std::vector<Panel<T>> panels = panels_of(V, n);
    const std::int64_t size = panels.empty() ? 0 : panels.back().before + panels.back().size;
    require(first <= panels.size(), "first must be a panel of V");
    require(static_cast<std::int64_t>(inside.shape(0)) == size && gram.shape(0) == W.shape(1) &&
                inside.shape(1) == W.shape(1) && gram.shape(1) == W.shape(1),
            "inside and gram must have shapes (columns of V, columns of W) and (columns of W, columns of W)");
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    using Part = std::span<const Panel<T>>;
    const auto add_coefficients = [&](Part part, T* sum, std::int64_t begin, std::int64_t end) {
        for (const Panel<T>& panel : part)
            kernel.coefficient_rows(panel.rows, panel.stride, panel.size, W.data(), width,
                                    sum + (panel.before - part.front().before) * width, begin, end);
    };
    const Part all(panels);
    Part used = all.subspan(first);
    const std::int64_t unused = used.empty() ? size : used.front().before;
    std::fill_n(inside.data(), size * width, 0.0);
    std::vector<double> sums = sums_over_rows<T>(
        n, (size - unused) * width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
            for (; begin < end; begin += step) add_coefficients(used, sum, begin, std::min(begin + step, end));
        });
    for (bool last = !again;; last = true) {
        const std::vector<T> H(sums.begin(), sums.end());
        double* into = inside.data() + size * width - H.size();
        for (const T coefficient : H) *into++ += coefficient;
        std::vector<std::unique_ptr<T[]>> packed;
        for (const Panel<T>& panel : used)
            packed.push_back(packed_columns<T>(H.data() + (panel.before - used.front().before) * width, panel.size, width, -1));
        const Panel<T> block{W.data(), width, width, 0};
        const Part following = last ? Part(&block, 1) : all;
        sums = sums_over_rows<T>(n, (last ? width : size) * width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
            for (; begin < end; begin += step) {
                const std::int64_t stop = std::min(begin + step, end);
                for (std::size_t i = 0; i < used.size(); ++i)
                    kernel.add_product_rows(used[i].rows, used[i].stride, used[i].size, packed[i].get(), width, W.data(),
                                            begin, stop);
                add_coefficients(following, sum, begin, stop);
            }
        });
        if (last) break;
        used = all;
    }
    std::copy(sums.begin(), sums.end(), gram.data());
}

// W = V H, for a contiguous W or, if it starts where V does, for the first columns of the only panel of V.
template <class T>
void multiply(const Panels<T>& V, In2<T> H, nb::ndarray<T, nb::ndim<2>, nb::device::cpu> W, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), step = 240;
    const std::vector<Panel<T>> panels = panels_of(V, n);
    require(!panels.empty(), "V must have a panel");
    const bool in_place = panels.size() == 1 && W.data() == panels[0].rows;
    require(static_cast<std::int64_t>(H.shape(0)) == panels.back().before + panels.back().size && H.shape(1) == W.shape(1),
            "H must have shape (columns of V, columns of W)");
    require(W.size() == 0 || ((width == 1 || W.stride(1) == 1) &&
                              (n == 1 || W.stride(0) == (in_place ? panels[0].stride : width))),
            "W must be contiguous, or the first columns of V");
    const nb::gil_scoped_release release;
    std::vector<std::unique_ptr<T[]>> packed;
    for (const Panel<T>& panel : panels)
        packed.push_back(packed_columns<T>(H.data() + panel.before * width, panel.size, width, 1));
    on_ranges(n, step, threads, in_place ? step * width * sizeof(T) : 0, [&](auto begin, auto end, void* memory) {
        T* to = W.data() + begin * W.stride(0);
        T* rows = in_place ? static_cast<T*>(memory) : to;
        for (std::size_t i = 0; i < panels.size(); ++i) {
            const auto [first, stride, size, before] = panels[i];
            const auto product = i == 0 ? kernels<T>().multiply_rows : kernels<T>().add_product_rows;
            product(first + begin * stride, stride, size, packed[i].get(), width, rows, 0, end - begin);
        }
        for (std::int64_t row = 0; in_place && row < end - begin; ++row)
            std::copy_n(rows + row * width, width, to + row * W.stride(0));
    });
}

// W -= V H
template <class T>
void subtract(InRows<T> V, In2<T> H, Out2<T> W, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), size = V.shape(1);
    check_basis(V, n);
    require(H.shape(0) == V.shape(1) && H.shape(1) == W.shape(1), "H must have shape (columns of V, columns of W)");
    const nb::gil_scoped_release release;
    const auto packed = packed_columns<T>(H.data(), size, width, -1);
    on_ranges(n, 960, threads, 0, [&](auto begin, auto end, void*) {
        kernels<T>().add_product_rows(V.data(), V.stride(0), size, packed.get(), width, W.data(), begin, end);
    });
}

// The squared norm of each column of P - V diag(s).
template <class T>
void squared_distances(InRows<T> P, In2<T> V, In1<T> s, Out1<double> squares, int threads) {
    const std::int64_t n = V.shape(0), width = V.shape(1);
    check_basis(P, n);
    require(P.shape(1) == V.shape(1) && s.size() == V.shape(1) && squares.size() == V.shape(1),
            "P, V, s and squares must have the same number of columns");
    const nb::gil_scoped_release release;
    const auto total = sums_over_rows<T>(n, width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
        kernels<T>().distance_rows(P.data(), P.stride(0), V.data(), s.data(), width, sum, begin, end);
    });
    std::copy(total.begin(), total.end(), squares.data());
}

// V = W, for a V of any strides.
template <class T>
void place(In2<T> W, nb::ndarray<T, nb::ndim<2>, nb::device::cpu> V, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), across = V.stride(1);
    require(V.shape(0) == W.shape(0) && V.shape(1) == W.shape(1), "V and W must have the same shape");
    const nb::gil_scoped_release release;
    on_ranges(n, 512, threads, 0, [&](auto begin, auto end, void*) {
        const T* from = W.data();
        T* to = V.data();
        if (across == 1)
            for (auto row = begin; row < end; ++row) std::copy_n(from + row * width, width, to + row * V.stride(0));
        else
            for (auto next = begin; begin < end; begin = next) {  // a few rows, which stay in the first-level cache
                next = std::min(begin + 32, end);
                for (std::int64_t j = 0; j < width; ++j)
                    for (auto row = begin; row < next; ++row) to[row * V.stride(0) + j * across] = from[row * width + j];
            }
    });
}

template <class T>
void add_typed(nb::module_& m) {
    add(m, "csr_entries", &csr_entries<T>, "indptr", "indices", "data", "left", "right", "out", "threads");
    add(m, "csr_matmat", &csr_matmat<T>, "indptr", "indices", "data", "X", "Y", "threads");
    add(m, "csr_rmatmat", &csr_rmatmat<T>, "indptr", "indices", "data", "X", "Y", "threads");
    add(m, "coefficients", &coefficients<T>, "V", "W", "P", "threads");
    add(m, "multiply", &multiply<T>, "V", "H", "W", "threads");
    add(m, "subtract", &subtract<T>, "V", "H", "W", "threads");
    add(m, "project", &project<T>, "V", "first", "again", "W", "inside", "gram", "threads");
    add(m, "squared_distances", &squared_distances<T>, "P", "V", "s", "squares", "threads");
    add(m, "place", &place<T>, "W", "V", "threads");
}

}  // namespace

void add_products(nb::module_& m) {
    add_typed<float>(m);
    add_typed<double>(m);
}

}  // namespace lowrank
