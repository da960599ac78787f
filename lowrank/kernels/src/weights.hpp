// The largest entries of rows of X' diag(weight) X and of sums over pairs, a row at a time in a dense array.

#pragma once

#include "kernels.hpp"
#include "topk.hpp"

namespace lowrank::LOWRANK_ISA {

// A row of sums that is zero except for some vector-sized blocks.
struct SparseSums {
    float* sums;
    std::uint8_t* touched;  // per block
    std::int64_t n;
};

inline std::int64_t sum_blocks(std::int64_t n) { return (n + score_lanes - 1) / score_lanes; }

inline std::size_t row_workspace(std::int64_t n_cols, std::int64_t most) {
    return most * sizeof(std::uint64_t) + sum_blocks(n_cols) * (score_lanes * sizeof(float) + 1);
}

// Adds up row `row` of X' diag(weight) X, in the order of its entries in X'.
inline void add_gram_row(const GramProblem& problem, std::int64_t row, const SparseSums& found) {
    const Csr<float>&X = problem.by_row, &columns = problem.by_column;
    std::int64_t terms = 0;
    for (std::int64_t e = columns.indptr[row]; e < columns.indptr[row + 1]; ++e)
        terms += X.indptr[columns.indices[e] + 1] - X.indptr[columns.indices[e]];
    const bool few = terms < found.n;
    const std::int64_t blocks = sum_blocks(found.n);
    __builtin_memset(found.touched, !few, blocks);
    for (std::int64_t e = columns.indptr[row]; e < columns.indptr[row + 1]; ++e) {
        const std::int32_t other = columns.indices[e];
        const float value = columns.data[e] * problem.weight[other];
        for (std::int64_t p = X.indptr[other]; p < X.indptr[other + 1]; ++p) {
            float& sum = found.sums[X.indices[p]];
            sum = add_product<float, 1>(sum, value, X.data[p]);
        }
        if (few)
            for (std::int64_t p = X.indptr[other]; p < X.indptr[other + 1]; ++p) found.touched[X.indices[p] / score_lanes] = 1;
    }
    const float scale = problem.scale[row];
    for (std::int64_t block = 0; block < blocks; ++block) {
        if (!found.touched[block]) continue;
        const std::int64_t start = block * score_lanes, end = start + score_lanes < found.n ? start + score_lanes : found.n;
        for (std::int64_t i = start; i < end; ++i) found.sums[i] *= scale * problem.out[i];
    }
}

// Calls use(i) in order for the entries with absolute values of at least `least()`, which may rise on the way.
template <class Least, class Use>
[[gnu::always_inline]] inline void for_each_large(const SparseSums& found, const Least& least, const Use& use) {
    constexpr int W = score_lanes;
    for (std::int64_t block = 0, blocks = sum_blocks(found.n); block < blocks; ++block) {
        if (!found.touched[block]) continue;
        const Scores value = load<float, W>(found.sums + block * W), size = value < 0 ? -value : value;
        for (std::uint64_t large = at_least(size, broadcast<float, W>(least())); large; large &= large - 1)
            use(block * W + __builtin_ctzll(large));
    }
}

// Adds up the pairs of which item rows[row] comes first, in the order of its places.
inline void add_pair_row(const PairProblem& problem, std::int64_t row, const SparseSums& found) {
    const std::int64_t item = problem.rows[row], first = problem.by_item.indptr[item], last = problem.by_item.indptr[item + 1];
    const auto n_later = [&](std::int64_t place) {
        const std::int64_t later = problem.lags[place] - 1;
        return later < problem.reach ? later : problem.reach;
    };
    const bool few = (last - first) * problem.reach < found.n;
    __builtin_memset(found.touched, !few, sum_blocks(found.n));
    for (std::int64_t e = first; e < last; ++e) {
        const std::int64_t place = problem.by_item.indices[e], later = n_later(place);
        const float value = problem.by_item.data[e];
        for (std::int64_t lag = 1; lag <= later; ++lag) {
            const std::int32_t column = problem.items[place + lag];
            const float weight = problem.decay[lag] * problem.weights[place + lag];
            found.sums[column] = add_product<float, 1>(found.sums[column], value, weight);
            if (few) found.touched[column / score_lanes] = 1;
        }
    }
}

inline std::uint64_t size_key(const float* sums, std::int64_t i) { return candidate_key(__builtin_fabsf(sums[i]), i); }

// The key of the smallest of the largest `most` entries: of equal sizes the lower column is larger.
inline std::uint64_t least_key(const SparseSums& found, std::int64_t most, std::uint64_t* heap) {
    const auto smaller = [](std::uint64_t a, std::uint64_t b) { return a < b; };
    std::int64_t count = 0;
    float least = __FLT_DENORM_MIN__;
    for_each_large(found, [&] { return least; }, [&](std::int64_t i) {
        const std::uint64_t key = size_key(found.sums, i);
        if (count < most) {
            heap[count++] = key;
            if (count < most) return;
            make_heap(heap, most, smaller);
        } else if (key > heap[0]) {
            sift(heap, most, 0, key, smaller);
        }
        least = candidate_score(heap[0]);
    });
    return count < most ? 0 : heap[0];
}

// Writes the largest entries of rows begin:end of `n` columns that add_row(row, sums) adds up.
template <class Problem, class AddRow>
inline void write_largest(const Problem& problem, std::int64_t n, std::int64_t begin, std::int64_t end, void* workspace,
                          const AddRow& add_row) {
    const std::int64_t blocks = sum_blocks(n);
    auto* heap = static_cast<std::uint64_t*>(workspace);
    auto* sums = reinterpret_cast<float*>(heap + problem.most);
    const SparseSums found{sums, reinterpret_cast<std::uint8_t*>(sums + blocks * score_lanes), n};
    __builtin_memset(sums, 0, blocks * score_lanes * sizeof(float));
    for (std::int64_t row = begin; row < end; ++row) {
        add_row(row, found);
        const std::uint64_t least = problem.most < n ? least_key(found, problem.most, heap) : 0;
        const float least_size = least ? candidate_score(least) : __FLT_DENORM_MIN__;
        std::int64_t place = row * problem.most;
        for_each_large(found, [&] { return least_size; }, [&](std::int64_t i) {
            if (size_key(sums, i) < least) return;
            problem.columns[place] = static_cast<std::int32_t>(i);
            problem.values[place++] = sums[i];
        });
        problem.counts[row] = place - row * problem.most;
        for (std::int64_t block = 0; block < blocks; ++block)
            if (found.touched[block]) store<float, score_lanes>(sums + block * score_lanes, Scores{});
    }
}

inline void gram_rows(const GramProblem& problem, std::int64_t begin, std::int64_t end, void* workspace) {
    write_largest(problem, problem.by_row.n_cols, begin, end, workspace, [&](std::int64_t row, const SparseSums& found) {
        add_gram_row(problem, problem.first + row, found);
    });
}

inline void pair_rows(const PairProblem& problem, std::int64_t begin, std::int64_t end, void* workspace) {
    write_largest(problem, problem.n_cols, begin, end, workspace, [&](std::int64_t row, const SparseSums& found) {
        add_pair_row(problem, row, found);
    });
}

}  // namespace lowrank::LOWRANK_ISA
