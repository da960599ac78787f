// The n best items of each user by score_ui = (offset_u + bias_i) + x_u . y_i, without storing
// the scores; or, with weights, by a weighted cosine.
//
// Items are packed a panel at a time; each tile of users times the panel is one register block,
// compared with the users' n-th best so far before it leaves the registers. A dot product is one
// chain of multiply-adds over k from zero, whatever the tile: the same bits in any company, and
// in pair_dots. Items come in an order for which size and lift bound all later scores (Cauchy and
// Schwarz), so a user is done as soon as nothing to come can reach its n-th best.
//
// A candidate is one integer: the score, order-preserving, above the complement of the item.
// The larger integer is the better score or, in a tie, the lower item.

#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#include "gram.hpp"
#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr int score_lanes = lanes<float>;
inline constexpr int panel_items = block_cols * score_lanes;
using Scores = Vec<float, score_lanes>;

// Bit i says whether a[i] >= b[i]; never where one is NaN.
[[gnu::always_inline]] inline std::uint64_t at_least(Scores a, Scores b) {
#if defined(__AVX512F__) && LOWRANK_VECTOR_BYTES == 64
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
#elif defined(__AVX__) && LOWRANK_VECTOR_BYTES == 32
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
#elif defined(__SSE2__) && LOWRANK_VECTOR_BYTES == 16
    return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpge_ps(a, b)));
#else
    std::uint64_t mask = 0;
    for (int i = 0; i < score_lanes; ++i) mask |= static_cast<std::uint64_t>(a[i] >= b[i]) << i;
    return mask;
#endif
}

// Columns p, p + 1, ... p + score_lanes - 1 of as many rows.
[[gnu::always_inline]] inline void load_columns(const float* const* rows, std::int64_t p, Scores (&v)[score_lanes]) {
    for (int i = 0; i < score_lanes; ++i) v[i] = load<float, score_lanes>(rows[i] + p);
    transpose<float, score_lanes>(v);
}

[[gnu::always_inline]] inline Scores load_column(const float* const* rows, std::int64_t p) {
    float column[score_lanes];
    for (int i = 0; i < score_lanes; ++i) column[i] = rows[i][p];
    return load<float, score_lanes>(column);
}

// Calls use(p, column p) for each column of `score_lanes` rows of length k, in order.
template <class Use>
[[gnu::always_inline]] inline void for_each_column(const float* const* rows, std::int64_t k, const Use& use) {
    Scores columns[score_lanes];
    std::int64_t p = 0;
    for (; p + score_lanes <= k; p += score_lanes) {
        load_columns(rows, p, columns);
        for (int i = 0; i < score_lanes; ++i) use(p + i, columns[i]);
    }
    for (; p < k; ++p) use(p, load_column(rows, p));
}

// The state of one thread's block of users.
struct TopKBlock {
    const TopKProblem& problem;
    std::int64_t first;  // query of user 0
    float* panel = nullptr;  // k x panel_items
    float* bias = nullptr;  // panel_items
    float* weight = nullptr;  // panel_items
    float* threshold = nullptr;  // per user: scores below it are out
    std::int32_t* active = nullptr;  // users that are not done
    std::int64_t* count = nullptr;  // per user: candidates held
    std::uint64_t* heaps = nullptr;  // per user n candidates, the worst on top once there are n
};

inline std::uint64_t candidate_key(float score, std::int32_t item) {
    score += 0.0f;  // minus zero ties with zero
    std::uint32_t bits;
    __builtin_memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<std::uint64_t>(bits) << 32 | (0xffffffffu - static_cast<std::uint32_t>(item));
}

inline float candidate_score(std::uint64_t key) {
    std::uint32_t bits = static_cast<std::uint32_t>(key >> 32);
    bits = bits >> 31 ? bits & 0x7fffffffu : ~bits;
    float score;
    __builtin_memcpy(&score, &bits, sizeof score);
    return score;
}

inline std::int32_t candidate_item(std::uint64_t key) {
    return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(key));
}

// Puts `key` at or below `place` of a heap whose smallest is on top.
inline void sift(std::uint64_t* heap, std::int64_t size, std::int64_t place, std::uint64_t key) {
    for (std::int64_t child; (child = 2 * place + 1) < size; place = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (key <= heap[child]) break;
        heap[place] = heap[child];
    }
    heap[place] = key;
}

inline void make_heap(std::uint64_t* heap, std::int64_t size) {
    for (std::int64_t place = size / 2; place-- > 0;) sift(heap, size, place, heap[place]);
}

// Whether `item` is in the query's row of seen items. Rows are short: comparing with all of one is
// faster than a search, and needs no order.
inline bool is_seen(const TopKProblem& problem, std::int64_t query, std::int32_t item) {
    if (!problem.seen_rows) return false;
    const std::int64_t row = problem.seen_rows[query], end = problem.seen_indptr[row + 1];
    int hit = 0;
    for (std::int64_t i = problem.seen_indptr[row]; i < end; ++i) hit |= problem.seen_indices[i] == item;
    return hit;
}

inline void offer(const TopKBlock& block, std::int32_t user, float score, std::int32_t item) {
    const std::int64_t n = block.problem.n;
    std::uint64_t* heap = block.heaps + user * n;
    const std::uint64_t key = candidate_key(score, item);
    std::int64_t& count = block.count[user];
    if (count == n && key <= heap[0]) return;
    if (is_seen(block.problem, block.first + user, item)) return;
    if (count < n) {
        heap[count++] = key;
        if (count < n) return;
        make_heap(heap, n);
    } else {
        sift(heap, n, 0, key);
    }
    block.threshold[user] = candidate_score(heap[0]);
}

// Rows of the items at order[start:], for one vector of them; places beyond the last repeat one.
inline void item_rows(const TopKProblem& problem, std::int64_t start, const float* (&rows)[score_lanes]) {
    for (int i = 0; i < score_lanes; ++i) {
        const std::int64_t place = start + i < problem.n_order ? start + i : problem.n_order - 1;
        rows[i] = problem.items + problem.order[place] * problem.k;
    }
}

// Biases and weights of the panel of items order[start:]; places beyond the last get a bias of NaN,
// which no threshold lets pass.
inline void pack_bias(const TopKBlock& block, std::int64_t start) {
    const TopKProblem& problem = block.problem;
    for (int i = 0; i < panel_items; ++i) {
        const bool inside = start + i < problem.n_order;
        const std::int32_t item = problem.order[inside ? start + i : start];
        block.bias[i] = inside ? problem.bias[item] : __builtin_nanf("");
        block.weight[i] = problem.weight ? problem.weight[item] : 0;
    }
}

inline void pack_panel(const TopKBlock& block, std::int64_t start) {
    for (int c = 0; c < panel_items; c += score_lanes) {
        const float* rows[score_lanes];
        item_rows(block.problem, start + c, rows);
        for_each_column(rows, block.problem.k, [&](std::int64_t p, Scores column) {
            store<float, score_lanes>(block.panel + p * panel_items + c, column);
        });
    }
}

// The scores of one user from the dot products with the items of a vector of the panel.
[[gnu::always_inline]] inline Scores finished(const TopKBlock& block, Scores dots, Scores offset, int first) {
    const Scores bias = load<float, score_lanes>(block.bias + first);
    if (!block.problem.weight) return (offset + bias) + dots;
    const Scores one = broadcast<float, score_lanes>(1), cosines = dots * (offset * bias);
    const Scores below = cosines > one ? one : cosines;
    return (below < -one ? -one : below) * load<float, score_lanes>(block.weight + first);
}

// Offers the scores of a panel that are good enough to one user.
[[gnu::always_inline]] inline void select_row(const TopKBlock& block, std::int64_t start, std::int32_t user,
                                              Scores (&dots)[block_cols]) {
    constexpr int W = score_lanes;
    const Scores offset = broadcast<float, W>(block.problem.offset[block.first + user]);
    const Scores threshold = broadcast<float, W>(block.threshold[user]);
    std::uint64_t good = 0;
    for (int c = 0; c < block_cols; ++c) {
        dots[c] = finished(block, dots[c], offset, c * W);
        good |= at_least(dots[c], threshold) << (c * W);
    }
    if (__builtin_expect(good == 0, 1)) return;
    float scores[panel_items];
    for (int c = 0; c < block_cols; ++c) store<float, W>(scores + c * W, dots[c]);
    for (; good; good &= good - 1) {
        const int place = __builtin_ctzll(good);
        if (scores[place] >= block.threshold[user])
            offer(block, user, scores[place], block.problem.order[start + place]);
    }
}

// Scores a register block of active users, of which `filled` count, on the packed panel.
inline void score_tile(const TopKBlock& block, std::int64_t start, const std::int32_t* users, int filled) {
    constexpr int W = score_lanes, Rows = block_rows, Cols = block_cols;
    constexpr std::int64_t ahead = 12 * panel_items;  // a panel longer than the first-level cache
    const TopKProblem& problem = block.problem;
    const float* x[Rows];
    for (int r = 0; r < Rows; ++r)
        x[r] = problem.users + (block.first + users[r < filled ? r : 0]) * problem.k;
    Scores acc[Rows][Cols] = {};
    const float* panel = block.panel;
    for (std::int64_t p = 0; p < problem.k; ++p, panel += panel_items) {
        Scores y[Cols];
        for (int c = 0; c < Cols; ++c) y[c] = load<float, W>(panel + c * W);
        for (int c = 0; c < Cols; ++c) __builtin_prefetch(panel + ahead + c * W);
        for (int r = 0; r < Rows; ++r) {
            const Scores a = broadcast<float, W>(x[r][p]);
            for (int c = 0; c < Cols; ++c) acc[r][c] += a * y[c];
        }
    }
    for (int r = 0; r < Rows; ++r)
        if (r < filled) select_row(block, start, users[r], acc[r]);
}

// Scores one user on a panel that is not packed: for a single user that would take longer.
inline void score_alone(const TopKBlock& block, std::int64_t start, std::int32_t user) {
    const float* x = block.problem.users + (block.first + user) * block.problem.k;
    Scores acc[block_cols] = {};
    for (int c = 0; c < block_cols; ++c) {
        const float* rows[score_lanes];
        item_rows(block.problem, start + c * score_lanes, rows);
        for_each_column(rows, block.problem.k, [&](std::int64_t p, Scores column) {
            acc[c] += broadcast<float, score_lanes>(x[p]) * column;
        });
    }
    select_row(block, start, user, acc);
}

// Drops the users whose n-th best no item from `start` on can reach; returns how many are left.
// Rounding is monotonic, so the bound holds for the rounded scores as it stands.
inline std::int64_t still_active(const TopKBlock& block, std::int64_t start, std::int64_t n_active) {
    const TopKProblem& problem = block.problem;
    if (!problem.size) return n_active;
    const float size = problem.size[start], lift = problem.lift[start];
    std::int64_t left = 0;
    for (std::int64_t i = 0; i < n_active; ++i) {
        const std::int32_t user = block.active[i];
        const std::int64_t query = block.first + user;
        const float base = problem.weight ? lift : problem.offset[query] + lift;
        const float reach = problem.user_size[query] * size;
        block.active[left] = user;
        left += !(base + reach < block.threshold[user]);
    }
    return left;
}

// Writes the candidates of one user, best first.
inline void write_found(const TopKBlock& block, std::int32_t user) {
    const TopKProblem& problem = block.problem;
    std::uint64_t* heap = block.heaps + user * problem.n;
    const std::int64_t count = block.count[user], query = block.first + user;
    if (count < problem.n) make_heap(heap, count);
    for (std::int64_t last = count; last-- > 1;) {
        const std::uint64_t worst = heap[0];
        sift(heap, last, 0, heap[last]);
        heap[last] = worst;
    }
    problem.counts[query] = count;
    for (std::int64_t i = 0; i < problem.n; ++i) {
        problem.found[query * problem.n + i] = i < count ? candidate_item(heap[i]) : -1;
        problem.scores[query * problem.n + i] = i < count ? candidate_score(heap[i]) : -__builtin_inff();
    }
}

inline std::size_t topk_workspace(std::int64_t k, std::int64_t n, std::int64_t block_users) {
    return (k + 2) * panel_items * sizeof(float) +
           block_users * (n * sizeof(std::uint64_t) + sizeof(std::int64_t) + sizeof(std::int32_t) + sizeof(float));
}

// Answers queries begin:end.
inline void topk_users(const TopKProblem& problem, std::int64_t begin, std::int64_t end, void* workspace) {
    const std::int64_t users = end - begin;
    TopKBlock block{problem, begin, static_cast<float*>(workspace)};
    block.bias = block.panel + problem.k * panel_items;
    block.weight = block.bias + panel_items;
    block.heaps = reinterpret_cast<std::uint64_t*>(block.weight + panel_items);
    block.count = reinterpret_cast<std::int64_t*>(block.heaps + users * problem.n);
    block.active = reinterpret_cast<std::int32_t*>(block.count + users);
    block.threshold = reinterpret_cast<float*>(block.active + users);
    for (std::int64_t user = 0; user < users; ++user) {
        block.active[user] = static_cast<std::int32_t>(user);
        block.count[user] = 0;
        block.threshold[user] = -__FLT_MAX__;
    }
    std::int64_t left = users;
    for (std::int64_t start = 0; start < problem.n_order; start += panel_items) {
        left = still_active(block, start, left);
        if (!left) break;
        pack_bias(block, start);
        if (left == 1) {
            score_alone(block, start, block.active[0]);
            continue;
        }
        pack_panel(block, start);
        for (std::int64_t i = 0; i < left; i += block_rows)
            score_tile(block, start, block.active + i, left - i < block_rows ? static_cast<int>(left - i) : block_rows);
    }
    for (std::int64_t user = 0; user < users; ++user) write_found(block, static_cast<std::int32_t>(user));
}

// dots[i] = left[rows[i]] . right[others[i]], summed as in score_tile.
inline void pair_dots_range(const PairDots& problem, std::int64_t begin, std::int64_t end) {
    const float *left[score_lanes], *right[score_lanes];
    for (; begin < end; begin += score_lanes) {
        const std::int64_t filled = end - begin < score_lanes ? end - begin : score_lanes;
        for (int i = 0; i < score_lanes; ++i) {
            const std::int64_t pair = begin + (i < filled ? i : 0);
            left[i] = problem.left + problem.rows[pair] * problem.k;
            right[i] = problem.right + problem.others[pair] * problem.k;
        }
        Scores sum = {};
        std::int64_t p = 0;
        for (; p + score_lanes <= problem.k; p += score_lanes) {
            Scores a[score_lanes], b[score_lanes];
            load_columns(left, p, a);
            load_columns(right, p, b);
            for (int i = 0; i < score_lanes; ++i) sum += a[i] * b[i];
        }
        for (; p < problem.k; ++p) sum += load_column(left, p) * load_column(right, p);
        for (int i = 0; i < filled; ++i) problem.dots[begin + i] = sum[i];
    }
}

}  // namespace lowrank::LOWRANK_ISA
