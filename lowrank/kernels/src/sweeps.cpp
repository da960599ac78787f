// Entry points of the half-sweeps of ALS (normal.hpp, implicit.hpp), of posteriors and of drifts.

#include <cstdint>
#include <optional>

#include "bindings.hpp"
#include "parallel.hpp"

namespace lowrank {

namespace {

template <class T>
void als_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
                    In1<T> other_bias, double shift, In1<T> penalty, In1<T> bias_penalty, bool fit_bias,
                    Out2<T> factors, Out1<T> bias, Out1<double> objective, int threads,
                    std::optional<In1<T>> weights, bool nonnegative) {
    const std::int64_t n_rows = factors.shape(0), n_cols = other.shape(0);
    require(!weights || weights->size() == indices.size(), "weights must have one number per entry");
    require(factors.shape(1) == other.shape(1), "factors and other must have the same number of columns");
    require(static_cast<std::int64_t>(other_bias.size()) == n_cols, "other_bias must have one entry per row of other");
    for (std::size_t size : {penalty.size(), bias_penalty.size(), bias.size(), objective.size()})
        require(static_cast<std::int64_t>(size) == n_rows, "penalties, bias and objective must have one entry per row");
    const AlsProblem<T> problem{csr<T>(indptr, indices, data, n_rows, n_cols), other.data(), other_bias.data(),
                                penalty.data(), bias_penalty.data(), factors.data(), bias.data(),
                                objective.data(), shift, static_cast<std::int64_t>(other.shape(1)), fit_bias,
                                weights ? weights->data() : nullptr, nonnegative};
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    on_rows(indptr.data(), n_rows, active->batch_rows, threads, kernel.sweep_workspace(problem.k),
            [&](auto begin, auto end, void* memory) { kernel.als_rows(problem, begin, end, memory); });
}

template <class T>
void implicit_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
                         In2<T> gram, In1<T> penalty, Out2<T> factors, Out1<double> objective, int threads,
                         std::optional<In2<T>> right, std::optional<Out1<T>> residual, bool nonnegative) {
    const std::size_t n_rows = factors.shape(0), k = other.shape(1);
    require(!right || (right->shape(0) == n_rows && right->shape(1) == k), "right must be of the shape of factors");
    require(!residual || residual->size() == indices.size(), "residual must have one number per entry");
    require(!residual || !nonnegative, "non-negative factors are not solved for in blocks");
    require(factors.shape(1) == k, "factors and other must have the same number of columns");
    require(gram.shape(0) == k && gram.shape(1) == k, "gram must be square, of the length of a vector");
    require(penalty.size() == n_rows && objective.size() == n_rows, "penalty and objective must have one entry per row");
    const ImplicitProblem<T> problem{
        csr<T>(indptr, indices, data, static_cast<std::int64_t>(n_rows), static_cast<std::int64_t>(other.shape(0))),
        other.data(), gram.data(), penalty.data(), right ? right->data() : nullptr, factors.data(), objective.data(),
        static_cast<std::int64_t>(k), residual ? residual->data() : nullptr, nonnegative};
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    on_rows(indptr.data(), problem.weights.n_rows, active->batch_rows, threads, kernel.sweep_workspace(problem.k),
            [&](auto begin, auto end, void* memory) { kernel.implicit_rows(problem, begin, end, memory); });
}

// Mean number of reads of a vector from which on its factors are copied without the bias, to span fewer cache lines.
inline constexpr std::size_t often = 8;

// An empty array means no covariance.
template <class T>
void posterior_half_sweep(In1<std::int64_t> indptr, In1<std::int32_t> indices, Values<T> data, In2<T> other,
                          double shift, In2<T> prior, In1<T> weight, In2<T> prior_right, double noise_variance,
                          Out2<T> covariance, Out2<T> vectors, Out1<double> objective,
                          Out1<double> log_det, int threads, bool invert) {
    const std::size_t n_rows = vectors.shape(0), d = vectors.shape(1), cells = d * (d + 1) / 2;
    require(d >= 1 && other.shape(1) == d, "vectors and other must have the same number of columns");
    require(prior.shape(0) == d && prior.shape(1) == d, "prior must be square, of the length of a vector");
    require(weight.size() == n_rows && objective.size() == n_rows && log_det.size() == n_rows,
            "weight, objective and log_det must have one entry per row");
    require(prior_right.shape(0) == n_rows && prior_right.shape(1) == d, "prior_right must have the shape of vectors");
    const bool with_covariance = covariance.size() > 0;
    require(!with_covariance || (covariance.shape(0) == n_rows && covariance.shape(1) == cells),
            "covariance must have one packed triangle per row");
    const std::size_t n_cols = other.shape(0), k = d - 1;
    const std::int64_t step = static_cast<std::int64_t>(d);
    PosteriorProblem<T> problem{
        csr<T>(indptr, indices, data, static_cast<std::int64_t>(n_rows), static_cast<std::int64_t>(n_cols)),
        other.data(), other.data() + k, step, step, prior.data(), weight.data(), prior_right.data(),
        with_covariance ? covariance.data() : nullptr,
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

// Rows that a thread takes at once: whole groups of lanes of any instruction set.
inline constexpr std::int64_t descent_step = 256;

template <class T>
void nonnegative_descent(In2<T> gram, In2<T> products, Out2<T> factors, std::int64_t passes, int threads) {
    const std::size_t n_rows = factors.shape(0), k = factors.shape(1);
    require(gram.shape(0) == k && gram.shape(1) == k, "gram must be square, of the length of a vector");
    require(products.shape(0) == n_rows && products.shape(1) == k, "products must have the shape of factors");
    const DescentProblem<T> problem{gram.data(), products.data(), factors.data(), static_cast<std::int64_t>(k), passes};
    const nb::gil_scoped_release release;
    const Kernels<T>& kernel = kernels<T>();
    on_ranges(static_cast<std::int64_t>(n_rows), descent_step, threads, kernel.descent_workspace(problem.k),
              [&](auto begin, auto end, void* memory) { kernel.descent_rows(problem, begin, end, memory); });
}

template <class T>
void add_typed(nb::module_& m) {
    add(m, "als_half_sweep", &als_half_sweep<T>, "indptr", "indices", "data", "other", "other_bias", "shift",
        "penalty", "bias_penalty", "fit_bias", "factors", "bias", "objective", "threads",
        nb::arg("weights").noconvert() = nb::none(), nb::arg("nonnegative") = false);
    m.def("implicit_half_sweep", &implicit_half_sweep<T>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("data").noconvert(), nb::arg("other").noconvert(), nb::arg("gram").noconvert(),
          nb::arg("penalty").noconvert(), nb::arg("factors").noconvert(), nb::arg("objective").noconvert(),
          nb::arg("threads"), nb::arg("right").noconvert() = nb::none(),
          nb::arg("residual").noconvert() = nb::none(), nb::arg("nonnegative") = false);
    add(m, "posterior_half_sweep", &posterior_half_sweep<T>, "indptr", "indices", "data", "other", "shift", "prior",
        "weight", "prior_right", "noise_variance", "covariance", "vectors", "objective", "log_det", "threads",
        nb::arg("invert") = true);
    add(m, "nonnegative_descent", &nonnegative_descent<T>, "gram", "products", "factors", "passes", "threads");
    add(m, "drift_smooth", &drift_smooth<T>, "indptr", "gaps", "data", "noise", "variance", "scale", "means",
        "variances", "evidence", "threads");
}

}  // namespace

void add_sweeps(nb::module_& m) {
    add_typed<float>(m);
    add_typed<double>(m);
}

}  // namespace lowrank
