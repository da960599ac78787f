// The explicit ALS half-sweep: rows with many entries by their normal equations (normal.hpp), others by the dual
// system, with one equation per entry (dual.hpp).

#pragma once

#include "dual.hpp"
#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

template <class T>
struct Batch {
    std::int64_t row[lanes<T>];
    T sum[lanes<T>];  // sum of the targets
    double sum_squares[lanes<T>];
    int count = 0;
};

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
        yy += y * y;
        zy += z * y;
        zz += z * z;
    }
    V bias{};
    for (int l = 0; l < batch.count; ++l) {
        gain[l] = yy[l];
        if (!problem.fit_bias) continue;
        const std::int64_t row = batch.row[l];
        const T n = static_cast<T>(problem.ratings.indptr[row + 1] - problem.ratings.indptr[row]);
        const T numerator = batch.sum[l] - zy[l];
        bias[l] = numerator / (n - zz[l] + problem.bias_penalty[row]);
        gain[l] += static_cast<double>(bias[l]) * numerator;
    }
    return bias;
}

template <class T>
inline void solve_batch(const AlsProblem<T>& problem, const Workspace<T>& work, Batch<T>& batch) {
    using V = Vec<T, lanes<T>>;
    if (batch.count == 0) return;
    interleave_systems(work.systems, work.grams, batch.count, work.gram_size, work.width, work.width);
    V penalty;
    for (int l = 0; l < lanes<T>; ++l) penalty[l] = problem.penalty[batch.row[l < batch.count ? l : 0]];
    for (std::int64_t i = 0; i < problem.k; ++i) work.systems.at(i, i) += penalty;
    factor(work.systems);
    double gain[lanes<T>];
    const V bias = solve_bias(problem, work, batch, gain);
    for (std::int64_t i = 0; i < work.systems.size; ++i) {
        const V* rhs = work.systems.right(i);
        work.solution[i] = rhs[0] - bias * rhs[1];
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

template <class T>
void als_rows(const AlsProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const std::int64_t k = problem.k;
    const Workspace<T> work(k, memory);
    work.prepare(k, nullptr);
    const auto target = [&](std::int64_t row) {
        return [&problem, row](std::int64_t place, std::int64_t column) {
            return static_cast<T>(problem.ratings.value(row, place) - problem.shift) - problem.other_bias[column];
        };
    };
    const auto scale = [&](std::int64_t row) {
        for (std::int64_t j = 0; j < k; ++j) work.scale[j] = T(1) / static_cast<T>(__builtin_sqrt(problem.penalty[row]));
        work.scale[k] = problem.fit_bias ? T(1) / static_cast<T>(__builtin_sqrt(problem.bias_penalty[row])) : 0;
    };
    dual_rows<false>(problem.ratings, problem.other, problem.factors, work, k, problem.fit_bias, begin, end, scale,
              target, [&](std::int64_t row, int lane, const T* targets) {
                  const std::int64_t n = problem.ratings.indptr[row + 1] - problem.ratings.indptr[row];
                  double left = 0;
                  problem.objective[row] = 0;
                  for (std::int64_t p = 0; p < n; ++p) {
                      left += work.solution[p][lane];
                      problem.objective[row] += static_cast<double>(work.solution[p][lane]) * targets[p];
                  }
                  problem.bias[row] = work.scale[k] * work.scale[k] * static_cast<T>(left);
              });
    Batch<T> batch;
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t n = problem.ratings.indptr[row + 1] - problem.ratings.indptr[row];
        if (dual_size(n, problem.k)) continue;
        if (n == 0) {
            __builtin_memset(problem.factors + row * problem.k, 0, problem.k * sizeof(T));
            problem.bias[row] = 0;
            problem.objective[row] = 0;
            continue;
        }
        const TargetSums sums = accumulate<T, false>(problem.ratings, row, problem.other, k, k, work,
                                                     work.grams + batch.count * work.gram_size, target(row));
        batch.row[batch.count] = row;
        batch.sum[batch.count] = static_cast<T>(sums.sum);
        batch.sum_squares[batch.count++] = sums.squares;
        if (batch.count == lanes<T>) solve_batch(problem, work, batch);
    }
    solve_batch(problem, work, batch);
}

}  // namespace lowrank::LOWRANK_ISA
