// The half-sweep of implicit ALS: as als.hpp without biases, with a weight for each interaction and the Gram matrix of
// all columns for the pairs without an interaction. For many factors, the same for one block of factors, given the
// residuals of the others.

#pragma once

#include "als.hpp"

namespace lowrank::LOWRANK_ISA {

// Gathers a row's entries, root(v) m, tile by tile, multiplies them by a vector of work.width numbers, and calls
// use(first entry, number of entries, products).
template <class T, class Use>
inline void on_products(const ImplicitProblem<T>& problem, std::int64_t row, const Workspace<T>& work, const T* vector,
                        const Use& use) {
    constexpr int W = lanes<T>;
    const Csr<T>& weights = problem.weights;
    const std::int64_t end = weights.indptr[row + 1], most = work.tile_rows / W * W;
    for (std::int64_t first = weights.indptr[row]; first < end; first += most) {
        const std::int64_t n = end - first < most ? end - first : most;
        for (std::int64_t p = 0; p < n; ++p)
            copy_row(problem.other + weights.indices[first + p] * problem.k, work.tile + p * work.width, problem.k,
                     root(weights.value(row, first + p)));
        for (std::int64_t p = 0; p < n; p += W) {
            Vec<T, W> v[W]{};
            const T* rows = work.tile + p * work.width;
            for (std::int64_t j = 0; j < work.width; j += W)
                for (int r = 0; r < W; ++r)
                    v[r] = add_product<T, W>(v[r], load<T, W>(rows + r * work.width + j), load<T, W>(vector + j));
            transpose<T, W>(v);
            for (int r = 1; r < W; ++r) v[0] += v[r];
            store<T, W>(work.targets + p, v[0]);
        }
        use(first, n, work.targets);
    }
}

// As `accumulate`, for the targets less the products of other blocks: the residuals plus the products of this block.
template <class T>
inline double accumulate_block(const ImplicitProblem<T>& problem, std::int64_t row, const Workspace<T>& work, T* gram) {
    constexpr int W = lanes<T>;
    const Csr<T>& weights = problem.weights;
    const std::int64_t stored = weights.indptr[weights.n_rows], width = work.width;
    T *own = work.turned, *sums = gram + width * width;
    __builtin_memcpy(own, problem.factors + row * problem.k, problem.k * sizeof(T));
    __builtin_memcpy(gram, work.start, width * width * sizeof(T));
    __builtin_memset(sums, 0, rhs_columns * width * sizeof(T));
    TargetSums found;
    on_products(problem, row, work, own, [&](std::int64_t first, std::int64_t n, T* targets) {
        for (std::int64_t p = 0; p < n; ++p) {
            targets[p] += problem.residual[first + p];
            for (std::int64_t j = 0; j < width; j += W)
                store<T, W>(sums + j, add_product<T, W>(load<T, W>(sums + j), load<T, W>(work.tile + p * width + j),
                                                        broadcast<T, W>(targets[p])));
        }
        found.add(targets, n);
        const std::int64_t next = first + n, left = stored - next < n ? stored - next : n;
        const Ahead<T> ahead{problem.other, problem.k, problem.k, weights.indices + next, left};
        gram_update({work.tile, n, width}, width, gram, gram, ahead);
    });
    return found.squares;
}

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
    if (problem.nonnegative) {
        solve_nonnegative(work, problem.k, batch.row, batch.count, problem.factors);
        for (int l = 0; l < batch.count; ++l) {
            const std::int64_t row = batch.row[l];
            T* factors = problem.factors + row * problem.k;
            problem.objective[row] = batch.sum_squares[l] - store_nonnegative(work, problem.k, l, factors);
        }
        batch.count = 0;
        return;
    }
    factor(systems);
    V gain{};
    for (std::int64_t i = 0; i < systems.size; ++i) {
        const V y = systems.right(i)[0];
        gain = add_product<T, lanes<T>>(gain, y, y);
        work.solution[i] = y;
    }
    back_substitute(systems, work.solution);
    for (int l = 0; l < batch.count; ++l) {
        T* factors = problem.factors + batch.row[l] * problem.k;
        T* change = work.turned;
        for (std::int64_t i = 0; i < problem.k; ++i) {
            change[i] = work.solution[i][l] - factors[i];
            factors[i] = work.solution[i][l];
        }
        problem.objective[batch.row[l]] = batch.sum_squares[l] - gain[l];
        if (problem.residual == nullptr) continue;
        on_products(problem, batch.row[l], work, change, [&](std::int64_t first, std::int64_t n, const T* products) {
            for (std::int64_t p = 0; p < n; ++p) problem.residual[first + p] -= products[p];
        });
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
    for (std::int64_t j = k; j < work.width; ++j) work.turned[j] = 0;
    const auto equations = [&](std::int64_t row) {  // v (1 - a.m)^2 has the target root(v)
        return [&problem, row](std::int64_t place, std::int64_t) {
            const T weight = root(problem.weights.value(row, place));
            return Equation<T>{weight, weight};
        };
    };
    const auto scale = [&](std::int64_t row) {
        for (std::int64_t j = 0; j < k; ++j)
            work.scale[j] = static_cast<T>(1 / __builtin_sqrt(problem.gram[j * k + j] + problem.penalty[row]));
    };
    const bool is_plain = problem.right == nullptr && problem.residual == nullptr && !problem.nonnegative;
    const bool dual = is_plain && is_diagonal(problem.gram, k);
    if (dual)
        dual_rows<true>(problem.weights, problem.other, problem.factors, work, k, false, begin, end, scale, equations,
                        [&](std::int64_t row, double minimum, double) { problem.objective[row] = minimum; });
    Batch<T> batch;
    for (std::int64_t row = begin; row < end; ++row) {
        if (dual && dual_size(problem.weights.indptr[row + 1] - problem.weights.indptr[row], k)) continue;
        T* gram = work.grams + batch.count * work.gram_size;
        batch.row[batch.count] = row;
        batch.sum_squares[batch.count++] =
            problem.residual != nullptr
                ? accumulate_block(problem, row, work, gram)
                : accumulate<T, true>(problem.weights, row, problem.other, k, k, work, gram, equations(row)).squares;
        if (batch.count == lanes<T>) solve_interactions(problem, work, batch);
    }
    solve_interactions(problem, work, batch);
}

}  // namespace lowrank::LOWRANK_ISA
