// The half-sweep of implicit ALS: as als.hpp without biases, with a weight for each interaction and
// the Gram matrix of all columns, which stands for the pairs without one.

#pragma once

#include "als.hpp"

namespace lowrank::LOWRANK_ISA {

template <class T>
inline void solve_interactions(const ImplicitProblem<T>& problem, const Workspace<T>& work, Batch<T>& batch) {
    using V = Vec<T, lanes<T>>;
    if (batch.count == 0) return;
    const LaneSystems<T>& systems = work.systems;
    interleave_systems(systems, work.grams, batch.count, work.gram_size, work.width, work.width);
    V penalty;
    for (int l = 0; l < lanes<T>; ++l) penalty[l] = problem.penalty[batch.row[l < batch.count ? l : 0]];
    for (std::int64_t i = 0; i < problem.k; ++i) {
        systems.at(i, i) += penalty;
        for (int l = 0; problem.right != nullptr && l < batch.count; ++l)
            systems.right(i)[0][l] += problem.right[batch.row[l] * problem.k + i];
    }
    factor(systems);
    V gain{};
    for (std::int64_t i = 0; i < systems.size; ++i) {
        const V y = systems.right(i)[0];
        gain += y * y;
        work.solution[i] = y;
    }
    back_substitute(systems, work.solution);
    for (int l = 0; l < batch.count; ++l) {
        T* factors = problem.factors + batch.row[l] * problem.k;
        for (std::int64_t i = 0; i < problem.k; ++i) factors[i] = work.solution[i][l];
        problem.objective[batch.row[l]] = batch.sum_squares[l] - gain[l];
    }
    batch.count = 0;
}

template <class T>
inline bool is_diagonal(const T* matrix, std::int64_t k) {
    for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < k; ++j)
            if (i != j && matrix[i * k + j] != 0) return false;
    return true;
}

template <class T>
void implicit_rows(const ImplicitProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const Workspace<T> work(problem.k, memory);
    const std::int64_t k = problem.k;
    work.prepare(k, problem.gram);
    // v (1 - a.m)^2 is the square of a target root(v) with factors root(v) m.
    const auto target = [&](std::int64_t row) {
        return [&problem, row](std::int64_t place, std::int64_t) {
            const T weight = problem.weights.value(row, place);
            return weight == 1 ? weight : static_cast<T>(__builtin_sqrt(weight));
        };
    };
    const auto scale = [&](std::int64_t row) {
        for (std::int64_t j = 0; j < k; ++j)
            work.scale[j] = static_cast<T>(1 / __builtin_sqrt(problem.gram[j * k + j] + problem.penalty[row]));
    };
    const bool dual = problem.right == nullptr && is_diagonal(problem.gram, k);
    if (dual)
        dual_rows<true>(problem.weights, problem.other, problem.factors, work, k, false, begin, end, scale, target,
                  [&](std::int64_t row, int lane, const T* targets) {
                      const std::int64_t n = problem.weights.indptr[row + 1] - problem.weights.indptr[row];
                      problem.objective[row] = 0;
                      for (std::int64_t p = 0; p < n; ++p)
                          problem.objective[row] += static_cast<double>(work.solution[p][lane]) * targets[p];
                  });
    Batch<T> batch;
    for (std::int64_t row = begin; row < end; ++row) {
        if (dual && dual_size(problem.weights.indptr[row + 1] - problem.weights.indptr[row], k)) continue;
        const TargetSums sums = accumulate<T, true>(problem.weights, row, problem.other, k, k, work,
                                                    work.grams + batch.count * work.gram_size, target(row));
        batch.row[batch.count] = row;
        batch.sum_squares[batch.count++] = sums.squares;
        if (batch.count == lanes<T>) solve_interactions(problem, work, batch);
    }
    solve_interactions(problem, work, batch);
}

}  // namespace lowrank::LOWRANK_ISA
