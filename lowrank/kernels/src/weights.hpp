// The largest entries of rows of X' diag(weight) X, a row at a time in a dense array.

#pragma once

#include "kernels.hpp"
#include "topk.hpp"

namespace lowrank::LOWRANK_ISA {

inline std::size_t gram_workspace(const GramProblem& problem) {
    return problem.by_row.n_cols * sizeof(float) + problem.most * sizeof(std::uint64_t) + 64;
}

// Adds up row `row` of X' diag(weight) X, in the order of its entries in X'.
inline void add_gram_row(const GramProblem& problem, std::int64_t row, float* sums) {
    const Csr<float>&X = problem.by_row, &columns = problem.by_column;
    __builtin_memset(sums, 0, X.n_cols * sizeof(float));
    for (std::int64_t e = columns.indptr[row]; e < columns.indptr[row + 1]; ++e) {
        const std::int32_t other = columns.indices[e];
        const float value = columns.data[e] * problem.weight[other];
        for (std::int64_t p = X.indptr[other]; p < X.indptr[other + 1]; ++p) sums[X.indices[p]] += value * X.data[p];
    }
    const float scale = problem.scale[row];
    for (std::int64_t i = 0; i < X.n_cols; ++i) sums[i] *= scale * problem.out[i];
}

// Calls use(i) for the entries that are at least `least()` in size, in order; `least` may rise on the way.
template <class Least, class Use>
[[gnu::always_inline]] inline void for_each_large(const float* sums, std::int64_t n, const Least& least, const Use& use) {
    constexpr int W = score_lanes;
    std::int64_t i = 0;
    for (; i + W <= n; i += W) {
        const Scores value = load<float, W>(sums + i), size = value < 0 ? -value : value;
        for (std::uint64_t large = at_least(size, broadcast<float, W>(least())); large; large &= large - 1)
            use(i + __builtin_ctzll(large));
    }
    for (; i < n; ++i)
        if (__builtin_fabsf(sums[i]) >= least()) use(i);
}

inline std::uint64_t size_key(const float* sums, std::int64_t i) {
    return candidate_key(__builtin_fabsf(sums[i]), static_cast<std::int32_t>(i));
}

// The key of the smallest of the largest `most` entries: of equal sizes the lower column is larger.
inline std::uint64_t least_key(const float* sums, std::int64_t n, std::int64_t most, std::uint64_t* heap) {
    std::int64_t count = 0;
    float least = __FLT_DENORM_MIN__;
    for_each_large(sums, n, [&] { return least; }, [&](std::int64_t i) {
        const std::uint64_t key = size_key(sums, i);
        if (count < most) {
            heap[count++] = key;
            if (count < most) return;
            make_heap(heap, most);
        } else if (key > heap[0]) {
            sift(heap, most, 0, key);
        }
        least = candidate_score(heap[0]);
    });
    return count < most ? 0 : heap[0];
}

inline void gram_rows(const GramProblem& problem, std::int64_t begin, std::int64_t end, void* workspace) {
    auto* heap = static_cast<std::uint64_t*>(workspace);
    auto* sums = reinterpret_cast<float*>(heap + problem.most);
    const std::int64_t n = problem.by_row.n_cols;
    for (std::int64_t row = begin; row < end; ++row) {
        add_gram_row(problem, problem.first + row, sums);
        const std::uint64_t least = problem.most < n ? least_key(sums, n, problem.most, heap) : 0;
        const float least_size = least ? candidate_score(least) : __FLT_DENORM_MIN__;
        std::int64_t place = row * problem.most;
        for_each_large(sums, n, [&] { return least_size; }, [&](std::int64_t i) {
            if (size_key(sums, i) < least) return;
            problem.columns[place] = static_cast<std::int32_t>(i);
            problem.values[place++] = sums[i];
        });
        problem.counts[row] = place - row * problem.most;
    }
}

}  // namespace lowrank::LOWRANK_ISA
