// The explicit ALS half-sweep: rows with many entries by their normal equations (normal.hpp), others by the dual
// system, with one equation per entry (dual.hpp). Non-negative factors always by the normal equations (nonnegative.hpp).

#pragma once

#include "dual.hpp"
#include "kernels.hpp"
#include "nonnegative.hpp"

namespace lowrank::LOWRANK_ISA {

template <class T>
struct Batch {
    std::int64_t row[lanes<T>];
    T sum[lanes<T>];     // of the targets, times their weights
    T weight[lanes<T>];  // sum of the weights
    double sum_squares[lanes<T>];
    int count = 0;
};

// The root of the weight of an entry.
template <class T>
inline T root(T weight) {
    return weight == 1 ? weight : static_cast<T>(__builtin_sqrt(weight));
}

// The bias is the last unknown of each system, so it is eliminated by hand: with y = R^-T rhs and
// z = R^-T sums, b = (sum - z.y) / (n + bias_penalty - z.z) and a = R^-1 (y - b z).
template <class T>
inline Vec<T, lanes<T>> solve_bias(const AlsProblem<T>& problem, const Workspace<T>& work,
                                   const Batch<T>& batch, double (&gain)[lanes<T>]) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    V yy{}, zy{}, zz{};
    for (std::int64_t i = 0; i < work.systems.size; ++i) {
        const V y = work.systems.right(i)[0], z = work.systems.right(i)[1];
        yy = add_product<T, W>(yy, y, y);
        zy = add_product<T, W>(zy, z, y);
        zz = add_product<T, W>(zz, z, z);
    }
    V bias{};
    for (int l = 0; l < batch.count; ++l) {
        gain[l] = yy[l];
        if (!problem.fit_bias) continue;
        const std::int64_t row = batch.row[l];
        const T numerator = batch.sum[l] - zy[l];
        bias[l] = numerator / (batch.weight[l] - zz[l] + problem.bias_penalty[row]);
        gain[l] += static_cast<double>(bias[l]) * numerator;
    }
    return bias;
}

// The bias of a row with non-negative factors is free, so it is eliminated before: b = (sum - sums.a) / n, with the
// penalty in n, turns G into G - sums sums' / n and the right-hand side into rhs - sums sum / n.
template <class T>
inline void eliminate_bias(const AlsProblem<T>& problem, const Workspace<T>& work, Batch<T>& batch, int lane) {
    T* gram = work.grams + lane * work.gram_size;
    T* right = gram + work.width * work.width;
    const T* sums = right + work.width;
    const T n = batch.weight[lane] += problem.bias_penalty[batch.row[lane]];
    const T mean = batch.sum[lane] / n;
    for (std::int64_t i = 0; i < problem.k; ++i) {
        const T share = sums[i] / n;
        for (std::int64_t j = i; j < problem.k; ++j) gram[i * work.width + j] -= share * sums[j];
        right[i] -= mean * sums[i];
    }
    batch.sum_squares[lane] -= static_cast<double>(mean) * batch.sum[lane];
}

template <class T>
inline void solve_nonnegative_batch(const AlsProblem<T>& problem, const Workspace<T>& work, const Batch<T>& batch) {
    solve_nonnegative(work, problem.k, batch.row, batch.count, problem.factors);
    for (int l = 0; l < batch.count; ++l) {
        const std::int64_t row = batch.row[l];
        T* factors = problem.factors + row * problem.k;
        problem.objective[row] = batch.sum_squares[l] - store_nonnegative(work, problem.k, l, factors);
        T left = problem.fit_bias ? batch.sum[l] : 0;
        for (std::int64_t i = 0; problem.fit_bias && i < problem.k; ++i)
            left -= work.systems.right(i)[1][l] * factors[i];
        problem.bias[row] = problem.fit_bias ? left / batch.weight[l] : 0;
    }
}

template <class T>
inline void solve_batch(const AlsProblem<T>& problem, const Workspace<T>& work, Batch<T>& batch) {
    using V = Vec<T, lanes<T>>;
    if (batch.count == 0) return;
    for (int l = 0; problem.nonnegative && problem.fit_bias && l < batch.count; ++l)
        eliminate_bias(problem, work, batch, l);
    interleave_systems(work.systems, work.grams, batch.count, work.gram_size, work.width, work.width);
    V penalty;
    for (int l = 0; l < lanes<T>; ++l) penalty[l] = problem.penalty[batch.row[l < batch.count ? l : 0]];
    for (std::int64_t i = 0; i < problem.k; ++i) work.systems.at(i, i) += penalty;
    if (problem.nonnegative) {
        solve_nonnegative_batch(problem, work, batch);
        batch.count = 0;
        return;
    }
    factor(work.systems);
    double gain[lanes<T>];
    const V bias = solve_bias(problem, work, batch, gain);
    for (std::int64_t i = 0; i < work.systems.size; ++i) {
        const V* rhs = work.systems.right(i);
        work.solution[i] = subtract_product<T, lanes<T>>(rhs[0], bias, rhs[1]);
    }
    back_substitute(work.systems, work.solution);
    for (int l = 0; l < batch.count; ++l) {
        T* factors = problem.factors + batch.row[l] * problem.k;
        for (std::int64_t i = 0; i < problem.k; ++i) factors[i] = work.solution[i][l];
        problem.bias[batch.row[l]] = bias[l];
        problem.objective[batch.row[l]] = batch.sum_squares[l] - gain[l];
    }
    batch.count = 0;
}

template <class T>
std::size_t sweep_workspace(std::int64_t k) {
    return Workspace<T>(k, nullptr).bytes;
}

template <bool Weighted, class T>
void solve_als_rows(const AlsProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const std::int64_t k = problem.k;
    const Workspace<T> work(k, memory);
    work.prepare(k, nullptr);
    const auto equations = [&](std::int64_t row) {
        return [&problem, row](std::int64_t place, std::int64_t column) {
            const T target =
                static_cast<T>(problem.ratings.value(row, place) - problem.shift) - problem.other_bias[column];
            if constexpr (!Weighted) return Equation<T>{target, 1};
            const T weight = root(problem.weights[place]);
            return Equation<T>{weight * target, weight};
        };
    };
    const auto scale = [&](std::int64_t row) {
        for (std::int64_t j = 0; j < k; ++j) work.scale[j] = T(1) / static_cast<T>(__builtin_sqrt(problem.penalty[row]));
        work.scale[k] = problem.fit_bias ? T(1) / static_cast<T>(__builtin_sqrt(problem.bias_penalty[row])) : 0;
    };
    if (!problem.nonnegative)
        dual_rows<Weighted>(problem.ratings, problem.other, problem.factors, work, k, problem.fit_bias, begin, end,
                            scale, equations, [&](std::int64_t row, double minimum, double total) {
                                problem.objective[row] = minimum;
                                problem.bias[row] = work.scale[k] * work.scale[k] * static_cast<T>(total);
                            });
    Batch<T> batch;
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t n = problem.ratings.indptr[row + 1] - problem.ratings.indptr[row];
        if (!problem.nonnegative && dual_size(n, problem.k)) continue;
        if (n == 0) {
            __builtin_memset(problem.factors + row * problem.k, 0, problem.k * sizeof(T));
            problem.bias[row] = 0;
            problem.objective[row] = 0;
            continue;
        }
        const TargetSums sums = accumulate<T, Weighted>(problem.ratings, row, problem.other, k, k, work,
                                                        work.grams + batch.count * work.gram_size, equations(row));
        batch.row[batch.count] = row;
        batch.sum[batch.count] = static_cast<T>(sums.sum);
        batch.weight[batch.count] = static_cast<T>(sums.weight);
        batch.sum_squares[batch.count++] = sums.squares;
        if (batch.count == lanes<T>) solve_batch(problem, work, batch);
    }
    solve_batch(problem, work, batch);
}

template <class T>
void als_rows(const AlsProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    if (problem.weights) solve_als_rows<true>(problem, begin, end, memory);
    else solve_als_rows<false>(problem, begin, end, memory);
}

}  // namespace lowrank::LOWRANK_ISA
