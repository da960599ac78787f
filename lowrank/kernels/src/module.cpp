// The Python module `lowrank.kernels._core`: checks shapes, picks the instruction set, deals the
// work out to threads with the interpreter lock released.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "entries.hpp"
#include "kernels.hpp"
#include "parallel.hpp"

namespace {

using namespace lowrank;

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

// Values of the entries: numbers; or codes, their 256 levels, and shifts of rows and columns (or none).
template <class T>
using Coded = std::tuple<In1<std::uint8_t>, In1<T>, In1<T>, In1<T>>;
template <class T>
using Values = std::variant<In1<T>, Coded<T>>;

template <class T>
Csr<T> csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<T>& data,
           std::int64_t n_rows, std::int64_t n_cols) {
    check_offsets(indptr, indices.size(), data.size(), n_rows);
    return {indptr.data(), indices.data(), data.data(), n_rows, n_cols};
}

template <class T>
Csr<T> csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const Values<T>& values,
           std::int64_t n_rows, std::int64_t n_cols) {
    if (const In1<T>* data = std::get_if<In1<T>>(&values)) return csr<T>(indptr, indices, *data, n_rows, n_cols);
    const auto& [codes, levels, row_shift, column_shift] = std::get<Coded<T>>(values);
    check_offsets(indptr, indices.size(), codes.size(), n_rows);
    require(levels.size() == entries::most_levels, "levels must have 256 entries");
    const bool shifted = row_shift.size() > 0 || column_shift.size() > 0;
    require(!shifted || (static_cast<std::int64_t>(row_shift.size()) == n_rows &&
                         static_cast<std::int64_t>(column_shift.size()) == n_cols),
            "shifts must have one entry per row and column");
    return {indptr.data(), indices.data(), nullptr, n_rows, n_cols, codes.data(), levels.data(),
            shifted ? row_shift.data() : nullptr, shifted ? column_shift.data() : nullptr};
}

template <class T>
void als_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
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
    on_rows(indptr.data(), n_rows, active->batch_rows, threads, kernel.sweep_workspace(problem.k),
            [&](auto begin, auto end, void* memory) { kernel.als_rows(problem, begin, end, memory); });
}

template <class T>
void implicit_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
                         In2<T> gram, In1<T> penalty, Out2<T> factors, Out1<double> objective, int threads,
                         std::optional<In2<T>> right, std::optional<Out1<T>> residual) {
    const std::size_t n_rows = factors.shape(0), k = other.shape(1);
    require(!right || (right->shape(0) == n_rows && right->shape(1) == k), "right must be of the shape of factors");
    require(!residual || residual->size() == indices.size(), "residual must have one number per entry");
    require(factors.shape(1) == k, "factors and other must have the same number of columns");
    require(gram.shape(0) == k && gram.shape(1) == k, "gram must be square, of the length of a vector");
    require(penalty.size() == n_rows && objective.size() == n_rows, "penalty and objective must have one entry per row");
    const ImplicitProblem<T> problem{
        csr<T>(indptr, indices, data, static_cast<std::int64_t>(n_rows), static_cast<std::int64_t>(other.shape(0))),
        other.data(), gram.data(), penalty.data(), right ? right->data() : nullptr, factors.data(), objective.data(),
        static_cast<std::int64_t>(k), residual ? residual->data() : nullptr};
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    on_rows(indptr.data(), problem.weights.n_rows, active->batch_rows, threads, kernel.sweep_workspace(problem.k),
            [&](auto begin, auto end, void* memory) { kernel.implicit_rows(problem, begin, end, memory); });
}

// Times that a vector is read from which its factors are copied, apart from its bias: they straddle fewer cache lines.
inline constexpr std::size_t often = 8;

// Empty arrays stand for no covariance and no draws.
template <class T>
void posterior_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
                          double shift, In2<T> prior, In1<T> weight, In2<T> prior_right, double noise_variance,
                          In2<T> draws, Out2<T> covariance, Out2<T> vectors, Out1<double> objective,
                          Out1<double> log_det, int threads, bool invert) {
    const std::size_t n_rows = vectors.shape(0), d = vectors.shape(1), cells = d * (d + 1) / 2;
    require(d >= 1 && other.shape(1) == d, "vectors and other must have the same number of columns");
    require(prior.shape(0) == d && prior.shape(1) == d, "prior must be square, of the length of a vector");
    require(weight.size() == n_rows && objective.size() == n_rows && log_det.size() == n_rows,
            "weight, objective and log_det must have one entry per row");
    require(prior_right.shape(0) == n_rows && prior_right.shape(1) == d, "prior_right must have the shape of vectors");
    const bool with_covariance = covariance.size() > 0, with_draws = draws.size() > 0;
    require(!with_covariance || (covariance.shape(0) == n_rows && covariance.shape(1) == cells),
            "covariance must have one packed triangle per row");
    require(!with_draws || (draws.shape(0) == n_rows && draws.shape(1) == d), "draws must have the shape of vectors");
    const std::size_t n_cols = other.shape(0), k = d - 1;
    const std::int64_t step = static_cast<std::int64_t>(d);
    PosteriorProblem<T> problem{
        csr<T>(indptr, indices, data, static_cast<std::int64_t>(n_rows), static_cast<std::int64_t>(n_cols)),
        other.data(), other.data() + k, step, step, prior.data(), weight.data(), prior_right.data(),
        with_covariance ? covariance.data() : nullptr, with_draws ? draws.data() : nullptr,
        vectors.data(), objective.data(), log_det.data(), shift, noise_variance, step - 1, invert};
    const nb::gil_scoped_release release;
    std::unique_ptr<void, AlignedDelete> apart;
    if (indices.size() > often * n_cols) {
        apart = aligned_memory(n_cols * d * sizeof(T));
        T *factors = static_cast<T*>(apart.get()), *bias = factors + n_cols * k;
        for (std::size_t i = 0; i < n_cols; ++i) {
            std::copy_n(other.data() + i * d, k, factors + i * k);
            bias[i] = other.data()[i * d + k];
        }
        problem.other = factors, problem.other_bias = bias;
        problem.step = step - 1, problem.bias_step = 1;
    }
    const Kernels<T>& kernel = kernels<T>();
    on_rows(indptr.data(), problem.ratings.n_rows, active->batch_rows, threads, kernel.sweep_workspace(problem.k),
            [&](auto begin, auto end, void* memory) { kernel.posterior_rows(problem, begin, end, memory); });
}

template <class T>
void drift_smooth(In1<std::int64_t> indptr, In1<T> gaps, In1<T> data, double noise, double variance, double scale,
                  Out1<T> means, Out1<T> variances, Out1<double> evidence, int threads) {
    const std::int64_t n_rows = static_cast<std::int64_t>(evidence.size());
    const std::size_t n = data.size(), kept = means.size();
    require(indptr.size() == evidence.size() + 1 && indptr.data()[n_rows] == static_cast<std::int64_t>(n),
            "indptr must have one entry more than rows, and end with the number of observations");
    require(gaps.size() == n && (kept == 0 || kept == n) && variances.size() == kept,
            "gaps, means and variances must have one entry per observation");
    const DriftProblem<T> problem{indptr.data(), gaps.data(), data.data(), noise, variance, scale,
                                  kept ? means.data() : nullptr, kept ? variances.data() : nullptr, evidence.data()};
    const nb::gil_scoped_release release;
    on_rows(problem.indptr, n_rows, 1, threads, 0,
            [&](auto begin, auto end, void*) { kernels<T>().drift_rows(problem, begin, end); });
}

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
    const Csr<T> A = csr<T>(indptr, indices, data, Y.shape(0), X.shape(0));
    require(X.shape(1) == Y.shape(1), "X and Y must have the same number of columns");
    const std::int64_t width = X.shape(1), panel = 128 / sizeof(T);
    const nb::gil_scoped_release release;
    // Two cache lines of each row of X at a time: rows of the next entries are more likely to be in a cache.
    for (std::int64_t j = 0; j < width; j += panel)
        on_rows(A.indptr, A.n_rows, 16, threads, 0, [&](auto begin, auto end, void*) {
            kernels<T>().matmat_rows(A, X.data() + j, width, std::min(panel, width - j), Y.data() + j, begin, end);
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
void csr_rmatmat(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> X, Out2<T> Y, int threads) {
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
    require(V.size() == 0 || V.shape(1) == 1 || V.stride(1) == 1, "the rows of V must be contiguous");
    require(static_cast<std::int64_t>(V.shape(0)) == n, "V and W must have the same number of rows");
}

// `cells` sums over n rows: add(sum, begin, end) adds those of some rows. The rows are always cut into the same
// parts, whose sums are added in order: the number of threads changes no bit.
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

// W -= V V' W with the columns of V from `first` on, then with all of them once more if `again`; `inside` receives
// what V was multiplied by, and `gram` the W' W of what is left. Each pass sums for the next one while the rows are
// in the cache.
template <class T>
void project(InRows<T> V, std::int64_t first, bool again, Out2<T> W, Out2<double> inside, Out2<double> gram,
             int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), size = V.shape(1), stride = V.stride(0), step = 480;
    check_basis(V, n);
    require(0 <= first && first <= size, "first must be a column of V");
    require(static_cast<std::int64_t>(inside.shape(0)) == size && gram.shape(0) == W.shape(1) &&
                inside.shape(1) == W.shape(1) && gram.shape(1) == W.shape(1),
            "inside and gram must have shapes (columns of V, columns of W) and (columns of W, columns of W)");
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    std::fill_n(inside.data(), size * width, 0.0);
    std::vector<double> part = sums_over_rows<T>(
        n, (size - first) * width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
            kernel.coefficient_rows(V.data() + first, stride, size - first, W.data(), width, sum, begin, end);
        });
    for (bool last = !again;; last = true) {
        const std::vector<T> H(part.begin(), part.end());
        for (std::size_t cell = 0; cell < H.size(); ++cell) inside.data()[first * width + cell] += H[cell];
        const auto packed = packed_columns<T>(H.data(), size - first, width, -1);
        const T* following = last ? W.data() : V.data();
        const std::int64_t columns = last ? width : size, rows = last ? width : stride;
        part = sums_over_rows<T>(n, columns * width, threads, [&](T* sum, std::int64_t begin, std::int64_t end) {
            for (; begin < end; begin += step) {
                const std::int64_t stop = std::min(begin + step, end);
                kernel.add_product_rows(V.data() + first, stride, size - first, packed.get(), width, W.data(), begin,
                                        stop);
                kernel.coefficient_rows(following, rows, columns, W.data(), width, sum, begin, stop);
            }
        });
        if (last) break;
        first = 0;
    }
    std::copy(part.begin(), part.end(), gram.data());
}

// W = V H, for a contiguous W or, if it starts where V does, for the first columns of V.
template <class T>
void multiply(InRows<T> V, In2<T> H, nb::ndarray<T, nb::ndim<2>, nb::device::cpu> W, int threads) {
    const std::int64_t n = W.shape(0), width = W.shape(1), size = V.shape(1), stride = V.stride(0), step = 240;
    const bool in_place = W.data() == V.data();
    check_basis(V, n);
    require(H.shape(0) == V.shape(1) && H.shape(1) == W.shape(1), "H must have shape (columns of V, columns of W)");
    require(W.size() == 0 || ((width == 1 || W.stride(1) == 1) && (n == 1 || W.stride(0) == (in_place ? stride : width))),
            "W must be contiguous, or the first columns of V");
    const nb::gil_scoped_release release;
    const auto packed = packed_columns<T>(H.data(), size, width, 1);
    on_ranges(n, step, threads, in_place ? step * width * sizeof(T) : 0, [&](auto begin, auto end, void* memory) {
        T* to = W.data() + begin * W.stride(0);
        T* rows = in_place ? static_cast<T*>(memory) : to;
        kernels<T>().multiply_rows(V.data() + begin * stride, stride, size, packed.get(), width, rows, 0, end - begin);
        for (std::int64_t row = 0; in_place && row < end - begin; ++row)
            std::copy_n(rows + row * width, width, to + row * stride);
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
            for (std::int64_t j = 0; j < width; ++j)
                for (auto row = begin; row < end; ++row) to[row * V.stride(0) + j * across] = from[row * width + j];
    });
}

// Users that share one pass over the packed items: enough that packing costs little, few enough
// that the threads are evenly busy and the candidates take about 8 MB.
std::int64_t topk_block(std::int64_t n_queries, std::int64_t n, int threads) {
    const std::int64_t share = (n_queries + threads - 1) / threads;
    const std::int64_t even = std::max<std::int64_t>(share / 8, 256);
    const std::int64_t small = (std::int64_t{1} << 20) / std::max<std::int64_t>(n, 1);
    const std::int64_t block = std::min({std::int64_t{1024}, share, even, small});
    return (std::max<std::int64_t>(block, 1) + 7) / 8 * 8;
}

// A CSR matrix whose row starts are checked, so that no file can make a kernel leave its arrays. The columns of
// S are not looked at where the kernel looks at each of them itself.
Csr<float> checked_rows(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<float>& data,
                        std::int64_t n_cols) {
    require(indptr.size() > 0, "indptr must have one entry more than rows");
    const Csr<float> A = csr<float>(indptr, indices, data, static_cast<std::int64_t>(indptr.size()) - 1, n_cols);
    require(std::is_sorted(A.indptr, A.indptr + A.n_rows + 1), "indptr must not fall");
    return A;
}

Csr<float> checked_csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<float>& data,
                       std::int64_t n_cols) {
    const Csr<float> A = checked_rows(indptr, indices, data, n_cols);
    const auto outside = [n_cols](std::int32_t index) { return index < 0 || index >= n_cols; };
    require(std::none_of(A.indices, A.indices + indices.size(), outside), "indices must be those of columns");
    return A;
}

void top_k(In2<float> users, In1<float> offset, In2<float> items, In1<float> bias,
           std::optional<In1<float>> weight, In1<std::int32_t> order,
           std::optional<In1<float>> user_size, std::optional<In1<float>> size, std::optional<In1<float>> lift,
           In1<std::int64_t> stops, In2<float> user_rest, In2<float> item_rest,
           std::optional<In1<std::int64_t>> history_indptr, std::optional<In1<std::int32_t>> history_indices,
           std::optional<In1<float>> history_data, std::optional<In1<std::int64_t>> sparse_indptr,
           std::optional<In1<std::int32_t>> sparse_indices, std::optional<In1<float>> sparse_data,
           std::optional<In1<std::int64_t>> seen_rows, std::optional<In1<std::int64_t>> seen_indptr,
           std::optional<In1<std::int32_t>> seen_indices, Out2<std::int32_t> found, Out2<float> scores,
           Out1<std::int64_t> counts, int threads) {
    const std::size_t n_queries = users.shape(0), n_items = items.shape(0);
    require(users.shape(1) == items.shape(1), "users and items must have the same number of columns");
    require(offset.size() == n_queries && counts.size() == n_queries, "offset and counts must have one entry per user");
    require(bias.size() == n_items && (!weight || weight->size() == n_items),
            "bias and weight must have one entry per item");
    require(found.shape(0) == n_queries && scores.shape(0) == n_queries && found.shape(1) == scores.shape(1),
            "found and scores must have one row per user and the same number of columns");
    std::uint32_t last = 0;  // of all indices, so that they are compared many at a time
    for (std::size_t i = 0; i < order.size(); ++i) last = std::max(last, static_cast<std::uint32_t>(order.data()[i]));
    require(order.size() == 0 || last < n_items, "order must hold indices of items");
    TopKProblem problem{};
    problem.users = users.data(), problem.offset = offset.data(), problem.items = items.data();
    problem.bias = bias.data(), problem.weight = weight ? weight->data() : nullptr;
    problem.k = static_cast<std::int64_t>(users.shape(1));
    problem.order = order.data(), problem.n_order = static_cast<std::int64_t>(order.size());
    problem.n_queries = static_cast<std::int64_t>(n_queries), problem.n = static_cast<std::int64_t>(found.shape(1));
    problem.found = found.data(), problem.scores = scores.data(), problem.counts = counts.data();
    if (user_size && size && lift) {
        require(user_size->size() == n_queries, "user_size must have one entry per user");
        require(size->size() == order.size() && lift->size() == order.size(), "size and lift must have one entry per item of order");
        problem.user_size = user_size->data(), problem.size = size->data(), problem.lift = lift->data();
    }
    require(user_rest.shape(0) == stops.size() && item_rest.shape(0) == stops.size() &&
                (stops.size() == 0 || (user_rest.shape(1) == n_queries && item_rest.shape(1) == order.size())),
            "the rests must have one row per stop, and one column per user or item of order");
    for (std::size_t i = 0; i < stops.size(); ++i)
        require((i ? stops.data()[i - 1] : 0) < stops.data()[i] && stops.data()[i] < problem.k,
                "stops must ascend between 0 and the number of columns");
    problem.stops = stops.data(), problem.n_stops = static_cast<std::int64_t>(stops.size());
    problem.user_rest = user_rest.data(), problem.item_rest = item_rest.data();
    if (history_indptr && history_indices && history_data && sparse_indptr && sparse_indices && sparse_data) {
        problem.sparse = checked_rows(*sparse_indptr, *sparse_indices, *sparse_data, problem.n_order);
        problem.history = checked_csr(*history_indptr, *history_indices, *history_data, problem.sparse.n_rows);
        require(problem.history.n_rows == problem.n_queries, "history must have one row per user");
        require(!problem.weight && !problem.size, "weighted cosines and bounds of the order are for factors alone");
    }
    if (seen_rows && seen_indptr && seen_indices) {
        require(seen_rows->size() == n_queries, "seen_rows must have one entry per user");
        for (std::size_t i = 0; i < n_queries; ++i) {
            const std::size_t row = seen_rows->data()[i];
            require(row < seen_indptr->size() && row + 1 < seen_indptr->size(), "seen_rows must hold indices of rows");
            const std::int64_t begin = seen_indptr->data()[row], end = seen_indptr->data()[row + 1];
            require(0 <= begin && begin <= end && end <= static_cast<std::int64_t>(seen_indices->size()),
                    "seen_indptr must ascend from 0 to the number of seen items");
        }
        problem.seen_rows = seen_rows->data(), problem.seen_indptr = seen_indptr->data();
        problem.seen_indices = seen_indices->data();
    }
    const nb::gil_scoped_release release;
    const RetrievalKernels& kernel = active->retrieval;
    const std::int64_t step = topk_block(problem.n_queries, problem.n, threads);
    on_ranges(problem.n_queries, step, threads, kernel.topk_workspace(problem, step),
              [&](auto begin, auto end, void* memory) { kernel.topk_users(problem, begin, end, step, memory); });
}

void sparse_pairs(In1<std::int64_t> history_indptr, In1<std::int32_t> history_indices, In1<float> history_data,
                  In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> rows,
                  In1<std::int64_t> columns, Out1<float> found, int threads) {
    require(rows.size() == found.size() && columns.size() == found.size(),
            "rows, columns and found must have the same length");
    const Csr<float> S = checked_rows(indptr, indices, data, 0);
    const Csr<float> history = checked_csr(history_indptr, history_indices, history_data, S.n_rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
        require(0 <= rows.data()[i] && rows.data()[i] < history.n_rows, "rows must be those of the history");
    const nb::gil_scoped_release release;
    on_ranges(found.size(), 64, threads, 0, [&](auto begin, auto end, void*) {
        active->retrieval.sparse_pairs(history, S, rows.data(), columns.data(), found.data(), begin, end);
    });
}

void sparse_rows(In1<std::int64_t> history_indptr, In1<std::int32_t> history_indices, In1<float> history_data,
                 In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, Out2<float> Y, int threads) {
    const Csr<float> S = checked_csr(indptr, indices, data, static_cast<std::int64_t>(Y.shape(1)));
    const Csr<float> history = checked_csr(history_indptr, history_indices, history_data, S.n_rows);
    require(history.n_rows == static_cast<std::int64_t>(Y.shape(0)), "Y must have one row per row of the history");
    const nb::gil_scoped_release release;
    on_rows(history.indptr, history.n_rows, 1, threads, 0, [&](auto begin, auto end, void*) {
        active->retrieval.sparse_rows(history, S, Y.data(), begin, end);
    });
}

void gram_rows(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> column_indptr,
               In1<std::int32_t> column_indices, In1<float> column_data, In1<float> weight, In1<float> scale,
               In1<float> out, std::int64_t first, Out2<std::int32_t> columns, Out2<float> values,
               Out1<std::int64_t> counts, int threads) {
    const std::int64_t n = static_cast<std::int64_t>(counts.size());
    const GramProblem problem{
        checked_csr(indptr, indices, data, static_cast<std::int64_t>(out.size())),
        checked_csr(column_indptr, column_indices, column_data, static_cast<std::int64_t>(indptr.size()) - 1),
        weight.data(), scale.data(), out.data(), static_cast<std::int64_t>(columns.shape(1)), first,
        columns.data(), values.data(), counts.data()};
    require(weight.size() + 1 == indptr.size() && scale.size() + 1 == column_indptr.size(),
            "weight and scale must have one entry per row");
    require(0 <= first && first + n <= problem.by_column.n_rows && problem.most > 0, "the rows must be among those of X'");
    require(static_cast<std::int64_t>(columns.shape(0)) == n && values.shape(0) == columns.shape(0) &&
                values.shape(1) == columns.shape(1), "columns and values must have one row per row of the result");
    const nb::gil_scoped_release release;
    on_ranges(n, 4, threads, active->retrieval.gram_workspace(problem),
              [&](auto begin, auto end, void* memory) { active->retrieval.gram_rows(problem, begin, end, memory); });
}

void pair_dots(In2<float> left, In2<float> right, In1<std::int64_t> rows, In1<std::int64_t> others, Out1<float> dots,
               int threads) {
    require(left.shape(1) == right.shape(1), "left and right must have the same number of columns");
    require(rows.size() == dots.size() && others.size() == dots.size(), "rows, others and dots must have the same length");
    for (std::size_t i = 0; i < rows.size(); ++i)
        require(static_cast<std::size_t>(rows.data()[i]) < left.shape(0) &&
                    static_cast<std::size_t>(others.data()[i]) < right.shape(0),
                "rows and others must hold indices of rows of left and right");
    const PairDots problem{left.data(), right.data(), static_cast<std::int64_t>(left.shape(1)), rows.data(),
                           others.data(), dots.data()};
    const nb::gil_scoped_release release;
    on_ranges(dots.size(), 4096, threads, 0,
              [&](auto begin, auto end, void*) { active->retrieval.pair_dots(problem, begin, end); });
}

// Adds up rows of a CSR matrix, each times its factor, into `out`; only these rows are looked at.
void sum_rows(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> rows,
              In1<float> factors, Out1<float> out) {
    require(rows.size() == factors.size(), "rows and factors must have the same length");
    require(indices.size() == data.size(), "indices and data must have the same length");
    const auto n = static_cast<std::uint32_t>(out.size());
    bool inside = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t row = rows.data()[i];
        require(row + 1 < indptr.size(), "rows must be those of the matrix");
        const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
        require(0 <= begin && begin <= end && end <= static_cast<std::int64_t>(indices.size()),
                "indptr must ascend from 0 to the number of stored entries");
        const float factor = factors.data()[i];
        for (std::int64_t p = begin; p < end; ++p) {
            const auto column = static_cast<std::uint32_t>(indices.data()[p]);
            if (column < n) out.data()[column] += factor * data.data()[p];
            else inside = false;
        }
    }
    require(inside, "indices must be those of columns");
}

// out = weight base + factor scale (query . codes - centre) + slack error, of codes of 4 bits.
void scan_codes(In2<std::uint8_t> codes, In1<float> scale, In1<float> error, In1<std::int16_t> query, In1<float> base,
                float weight, float factor, float centre, float slack, Out1<float> out, int threads) {
    const std::size_t n = codes.shape(0), width = codes.shape(1);
    require(query.size() == 2 * width, "query must have two entries per column of codes");
    require(scale.size() == n && error.size() == n && out.size() == n && (base.size() == n || base.size() == 0),
            "scale, error, base and out must have one entry per row of codes");
    const CodeScan scan{codes.data(), scale.data(), error.data(), query.data(), base.size() ? base.data() : nullptr,
                        weight, factor, centre, slack, out.data(), static_cast<std::int64_t>(width)};
    const nb::gil_scoped_release release;
    on_ranges(static_cast<std::int64_t>(n), 4096, threads, 0,
              [&](auto begin, auto end, void*) { active->retrieval.scan_codes(scan, begin, end); });
}

// Writes the places of the largest scores, best first, of equal ones the lower; returns how many there are.
std::int64_t largest(In1<float> scores, Out1<std::int64_t> found) {
    using Entry = std::pair<float, std::int64_t>;
    const auto better = [](const Entry& a, const Entry& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    const auto n = static_cast<std::int64_t>(scores.size());
    const auto most = static_cast<std::int64_t>(found.size());
    std::vector<Entry> kept;
    kept.reserve(2 * most + 1);
    float bar = std::numeric_limits<float>::lowest();  // minus infinity is never found, nor is NaN
    if (constexpr std::int64_t least = 64; most && n >= 2 * least * most) {
        // As many blocks have a score that reaches the bar from the start: few others are looked at twice.
        const std::int64_t size = n / (4 * most) < least ? least : n / (4 * most) / least * least;
        std::vector<float> maxima(n / size);
        active->retrieval.block_maxima(scores.data(), size, n / size, maxima.data());
        std::nth_element(maxima.begin(), maxima.begin() + (most - 1), maxima.end(), std::greater<>{});
        bar = maxima[most - 1];
    }
    const auto next = [&](std::int64_t i) { return active->retrieval.next_at_least(scores.data(), i, n, bar); };
    for (std::int64_t i = next(0); most && i < n; i = next(i + 1)) {
        kept.emplace_back(scores.data()[i], i);
        if (std::ssize(kept) < 2 * most) continue;
        std::nth_element(kept.begin(), kept.begin() + (most - 1), kept.end(), better);
        kept.resize(most);
        bar = std::nextafter(kept[most - 1].first, std::numeric_limits<float>::infinity());
    }
    std::sort(kept.begin(), kept.end(), better);
    const std::int64_t count = std::min<std::int64_t>(std::ssize(kept), most);
    for (std::int64_t i = 0; i < count; ++i) found.data()[i] = kept[i].second;
    return count;
}

template <class T>
void add_kernels(nb::module_& m) {
    add(m, "als_half_sweep", &als_half_sweep<T>, "indptr", "indices", "data", "other", "other_bias", "shift",
        "penalty", "bias_penalty", "fit_bias", "factors", "bias", "objective", "threads");
    m.def("implicit_half_sweep", &implicit_half_sweep<T>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("data").noconvert(), nb::arg("other").noconvert(), nb::arg("gram").noconvert(),
          nb::arg("penalty").noconvert(), nb::arg("factors").noconvert(), nb::arg("objective").noconvert(),
          nb::arg("threads"), nb::arg("right").noconvert() = nb::none(),
          nb::arg("residual").noconvert() = nb::none());
    add(m, "posterior_half_sweep", &posterior_half_sweep<T>, "indptr", "indices", "data", "other", "shift", "prior",
        "weight", "prior_right", "noise_variance", "draws", "covariance", "vectors", "objective", "log_det", "threads",
        nb::arg("invert") = true);
    add(m, "drift_smooth", &drift_smooth<T>, "indptr", "gaps", "data", "noise", "variance", "scale", "means",
        "variances", "evidence", "threads");
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

NB_MODULE(_core, m) {
    m.def("use", &use, nb::arg("name"));
    m.def("supported", &supported);
    m.def("active", [] { return std::string(active->name); });
    add_kernels<float>(m);
    add_kernels<double>(m);
    add(m, "top_k", &top_k, "users", "offset", "items", "bias", "weight", "order", "user_size", "size", "lift",
        "stops", "user_rest", "item_rest", "history_indptr", "history_indices", "history_data", "sparse_indptr",
        "sparse_indices", "sparse_data", "seen_rows", "seen_indptr", "seen_indices", "found", "scores", "counts",
        "threads");
    add(m, "sparse_pairs", &sparse_pairs, "history_indptr", "history_indices", "history_data", "indptr", "indices",
        "data", "rows", "columns", "found", "threads");
    add(m, "sparse_rows", &sparse_rows, "history_indptr", "history_indices", "history_data", "indptr", "indices",
        "data", "Y", "threads");
    add(m, "gram_rows", &gram_rows, "indptr", "indices", "data", "column_indptr", "column_indices", "column_data",
        "weight", "scale", "out", "first", "columns", "values", "counts", "threads");
    add(m, "sum_rows", &sum_rows, "indptr", "indices", "data", "rows", "factors", "out");
    add(m, "scan_codes", &scan_codes, "codes", "scale", "error", "query", "base", "weight", "factor", "centre", "slack",
        "out", "threads");
    add(m, "largest", &largest, "scores", "found");
    add_entries(m);
    add(m, "pair_dots", &pair_dots, "left", "right", "rows", "others", "dots", "threads");
}
