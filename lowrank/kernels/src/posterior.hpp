// Posteriors of Gaussian rows: as als.hpp, with a full prior, the covariances of the other side
// added to the Gram matrix, and the covariance of each row as a result.
//
// The bias is the last unknown here, not eliminated by hand, since its covariances are needed.

#pragma once

#include "als.hpp"

namespace lowrank::LOWRANK_ISA {

// Calls each(i, v) with number i < n of `count` rows at a `distance`: one row per lane.
template <class T, class Each>
[[gnu::always_inline]] inline void by_lane(const T* rows, std::int64_t n, int count, std::int64_t distance,
                                           const Each& each) {
    constexpr int W = lanes<T>;
    Vec<T, W> v[W];
    std::int64_t i = 0;
    for (; i + W <= n; i += W) {
        load_lanes(rows + i, count, distance, v);
        for (int c = 0; c < W; ++c) each(i + c, v[c]);
    }
    for (; i < n; ++i) {
        for (int l = 0; l < W; ++l) v[0][l] = rows[(l < count ? l : 0) * distance + i];
        each(i, v[0]);
    }
}

// Data, prior and the other side's covariances together, as the systems of the rows first : first + count.
template <class T>
inline void assemble(const PosteriorProblem<T>& problem, std::int64_t first, int count,
                     const Workspace<T>& work, TargetSums (&sums)[lanes<T>]) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    const LaneSystems<T>& s = work.systems;
    const std::int64_t k = problem.k, d = k + 1, *indptr = problem.ratings.indptr + first;
    V weight, number, total, v[W];
    for (int l = 0; l < W; ++l) {
        const int from = l < count ? l : 0;
        weight[l] = problem.weight[first + from];
        number[l] = static_cast<T>(indptr[from + 1] - indptr[from]);
        total[l] = static_cast<T>(sums[from].sum);
    }
    for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = i / W * W; j < k; j += W) {
            load_lanes(work.grams + i * work.width + j, count, work.gram_size, v);
            for (std::int64_t c = j < i ? i - j : 0; c < W && j + c < k; ++c)
                s.at(i, j + c) = add_product<T, W>(v[c], weight, broadcast<T, W>(problem.prior[i * d + j + c]));
        }
    const T* side = work.grams + work.width * work.width;  // products with the targets, then sums of factors
    by_lane(side, k, count, work.gram_size, [&](std::int64_t i, V each) { s.right(i)[0] = each; });
    by_lane(side + work.width, k, count, work.gram_size,
            [&](std::int64_t i, V each) {
                s.at(i, k) = add_product<T, W>(each, weight, broadcast<T, W>(problem.prior[i * d + k]));
            });
    s.at(k, k) = add_product<T, W>(number, weight, broadcast<T, W>(problem.prior[k * d + k]));
    s.right(k)[0] = total;
    by_lane(problem.prior_right + first * d, d, count, d, [&](std::int64_t i, V each) { s.right(i)[0] += each; });
    for (std::int64_t j = d; j < s.size; ++j) {  // padding rows are systems of their own
        for (std::int64_t i = 0; i < j; ++i) s.at(i, j) = V{};
        s.at(j, j) = broadcast<T, W>(1);
        s.right(j)[0] = V{};
    }
    for (std::int64_t i = 0; i < s.size; ++i) s.right(i)[1] = V{};
    if (!problem.covariance) return;
    const std::int64_t cells = d * (d + 1) / 2;
    std::int64_t i = 0, j = 0;
    by_lane(problem.covariance + first * cells, cells, count, cells, [&](std::int64_t, V each) {
        if (j < k)
            s.at(i, j) += each;
        else if (i < k)
            s.right(i)[0] -= each;
        else
            for (int l = 0; l < count; ++l) sums[l].squares += each[l];
        if (++j == d) j = ++i;
    });
}

// Replaces R by R^-1, from the last row up, with zeros below the diagonal: T_i = (e_i - sum_{p > i} R_ip T_p) / R_ii.
template <class T>
inline void invert_factor(const LaneSystems<T>& s, typename LaneSystems<T>::V* line) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = s.size; i-- > 0;) {
        for (std::int64_t j = i; j < s.size; ++j) line[j] = s.at(i, j);
        for (std::int64_t j = i / panel * panel; j < s.size; j += panel) {
            const V* rows = s.columns(j);
            V acc[panel] = {};
            const std::int64_t last = j + panel;
            for (std::int64_t p = i + 1; p < last; ++p)
                unrolled<panel>([&](auto c) __attribute__((always_inline)) {
                    acc[c] = subtract_product<T, lanes<T>>(acc[c], line[p], rows[p * panel + c]);
                });
            for (int c = 0; c < panel; ++c) s.at(i, j + c) = acc[c] * s.inverse_diagonal[i];
        }
        s.at(i, i) = s.inverse_diagonal[i];
    }
}

// Replaces the upper triangle T, with zeros below it, by that of T T'.
template <class T>
inline void square_inverse(const LaneSystems<T>& s) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = 0; i < s.size; i += panel)
        for (std::int64_t j = i; j < s.size; j += panel) {
            V acc[panel][panel] = {};
            for (std::int64_t p = j; p < s.size; ++p) {
                const V *column = s.columns(p / panel * panel) + p % panel, *left = column + i * panel;
                column += j * panel;
                unrolled<panel>([&](auto r) __attribute__((always_inline)) {
                    unrolled<panel>([&](auto c) __attribute__((always_inline)) {
                        acc[r][c] = add_product<T, lanes<T>>(acc[r][c], left[r * panel], column[c * panel]);
                    });
                });
            }
            V* block = s.columns(j) + i * panel;
            for (int r = 0; r < panel; ++r)
                for (int c = 0; c < panel; ++c) block[r * panel + c] = acc[r][c];
        }
}

template <class T>
inline void store_covariances(const PosteriorProblem<T>& problem, const Workspace<T>& work,
                              std::int64_t first, int count) {
    constexpr int W = lanes<T>;
    const std::int64_t d = problem.k + 1, cells = d * (d + 1) / 2;
    const T scale = static_cast<T>(problem.noise_variance);
    T* out = problem.covariance + first * cells;
    std::int64_t done = 0;
    Vec<T, W> v[W];
    for (std::int64_t i = 0; i < d; ++i)
        for (std::int64_t j = i; j < d; ++j) {
            v[done % W] = scale * work.systems.at(i, j);
            if (++done % W) continue;
            transpose<T, W>(v);
            for (int l = 0; l < count; ++l) store<T, W>(out + l * cells + done - W, v[l]);
        }
    for (std::int64_t c = done / W * W; c < done; ++c)
        for (int l = 0; l < count; ++l) out[l * cells + c] = v[c % W][l];
}

// Solves the systems of the rows first : first + count.
template <class T>
inline void solve_posteriors(const PosteriorProblem<T>& problem, const Workspace<T>& work,
                             std::int64_t first, int count, const TargetSums (&sums)[lanes<T>]) {
    using V = Vec<T, lanes<T>>;
    const LaneSystems<T>& s = work.systems;
    const std::int64_t d = problem.k + 1;
    factor(s);
    V gain{};
    double log_det[lanes<T>] = {};
    for (std::int64_t i = 0; i < s.size; ++i) {
        const V y = s.right(i)[0];
        gain = add_product<T, lanes<T>>(gain, y, y);
        work.solution[i] = y;
    }
    for (std::int64_t i = 0; i < s.size; i += panel)
        for (int l = 0; l < count; ++l) {
            double product = 1;
            for (int r = 0; r < panel; ++r) product *= static_cast<double>(s.inverse_diagonal[i + r][l]);
            log_det[l] -= 2 * __builtin_log(product);
        }
    back_substitute(s, work.solution);
    for (int l = 0; l < count; ++l) {
        T* vector = problem.vectors + (first + l) * d;
        for (std::int64_t i = 0; i < d; ++i) vector[i] = work.solution[i][l];
        problem.objective[first + l] = sums[l].squares - gain[l];
        problem.log_det[first + l] = log_det[l];
    }
    if (!problem.covariance || !problem.invert) return;
    invert_factor(s, work.line);
    square_inverse(s);
    store_covariances(problem, work, first, count);
}

template <class T>
void posterior_rows(const PosteriorProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const Workspace<T> work(problem.k, memory, 1);
    work.prepare(problem.k, nullptr);
    for (std::int64_t first = begin; first < end; first += lanes<T>) {
        const int count = static_cast<int>(end - first < lanes<T> ? end - first : lanes<T>);
        TargetSums sums[lanes<T>];
        for (int l = 0; l < count; ++l) {
            const auto equation = [&](std::int64_t place, std::int64_t column) {
                const T target = static_cast<T>(problem.ratings.value(first + l, place) - problem.shift) -
                                 problem.other_bias[column * problem.bias_step];
                return Equation<T>{target, 1};
            };
            sums[l] = accumulate<T, false>(problem.ratings, first + l, problem.other, problem.step, problem.k, work,
                                           work.grams + l * work.gram_size, equation);
        }
        assemble(problem, first, count, work, sums);
        solve_posteriors(problem, work, first, count, sums);
    }
}

}  // namespace lowrank::LOWRANK_ISA
