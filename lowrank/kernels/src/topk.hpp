// The n best items of each user by score_ui = ((offset_u + bias_i) + x_u . y_i) + sum_j h_uj S_ji,
// without storing the scores; or, with weights, by a weighted cosine.
//
// Items are packed one panel at a time. The product of a tile of users and the panel is one register
// block, which is compared with the users' n-th best scores so far before it leaves the registers. A
// dot product is one chain of multiply-adds over k from zero in every tile, so that it has the same
// bits in any batch, and in pair_dots. Items are in an order in which size and lift bound all later
// scores (Cauchy-Schwarz), so a user is done as soon as no later item can reach its n-th best. Long
// products stop on the way to skip users for whom no item of the panel can reach it.
//
// The sparse part is summed before the products, for as many positions of the order at once as keep
// the sums of a block of users in the cache, for each user in the order of the history.
//
// A candidate is one integer: the score, order-preserving, above the complement of the item. Only if two scores are
// equal, candidates are compared by their places among ties.

#pragma once

#include "gram.hpp"
#include "kernels.hpp"
#include "spmm.hpp"

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

// Calls use(p, column p) for the columns from:to of `score_lanes` rows, in order.
template <class Use>
[[gnu::always_inline]] inline void for_each_column(const float* const* rows, std::int64_t from, std::int64_t to,
                                                   const Use& use) {
    Scores columns[score_lanes];
    for (; from + score_lanes <= to; from += score_lanes) {
        load_columns(rows, from, columns);
        for (int i = 0; i < score_lanes; ++i) use(from + i, columns[i]);
    }
    for (; from < to; ++from) use(from, load_column(rows, from));
}

inline constexpr std::int64_t sparse_ahead = 4;  // entries of a history whose rows of S are fetched early
inline constexpr std::int64_t sums_bytes = 32 << 20;  // of sums of a block of users

// Places of the order whose sparse sums are kept at a time for each of a block of users.
inline std::int64_t tile_places(const TopKProblem& problem, std::int64_t block_users) {
    if (!problem.history.indptr) return 0;
    const std::int64_t most = sums_bytes / static_cast<std::int64_t>(sizeof(float)) / block_users;
    const std::int64_t panels = most / panel_items > 8 ? most / panel_items : 8;
    const std::int64_t all = round_up(problem.n_order, panel_items);
    return panels * panel_items < all ? panels * panel_items : all;
}

// Entries of the histories of the queries begin:end.
inline std::int64_t history_size(const TopKProblem& problem, std::int64_t begin, std::int64_t end) {
    return problem.history.indptr ? problem.history.indptr[end] - problem.history.indptr[begin] : 0;
}

// The state of one thread's block of users.
struct TopKBlock {
    const TopKProblem& problem;
    std::int64_t first;  // query of user 0
    std::int64_t users;
    std::int64_t places = 0;     // of a tile
    float* panel = nullptr;  // k x panel_items
    float* bias = nullptr;  // panel_items
    float* weight = nullptr;  // panel_items
    float* threshold = nullptr;  // per user: scores below it are out
    std::int32_t* active = nullptr;  // users that are not done
    std::int64_t* count = nullptr;  // per user: candidates held
    std::uint64_t* heaps = nullptr;  // per user n candidates, the worst on top once there are n
    std::int32_t* alive = nullptr;   // active users whom the panel may still reach
    float* partial = nullptr;        // per place in `alive`, the products so far
    float* sums = nullptr;           // per user, the sparse part of a tile
    std::int64_t* cursor = nullptr;  // per entry of the histories, the entry of its row of S that is next
};

// An integer in the order of scores.
inline std::uint32_t score_bits(float score) {
    score += 0.0f;  // minus zero ties with zero
    std::uint32_t bits;
    __builtin_memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline float score_of(std::uint32_t bits) {
    bits = bits >> 31 ? bits & 0x7fffffffu : ~bits;
    float score;
    __builtin_memcpy(&score, &bits, sizeof score);
    return score;
}

// A score, or the size of an entry, above the complement of an index.
inline std::uint64_t candidate_key(float score, std::int64_t index) {
    return static_cast<std::uint64_t>(score_bits(score)) << 32 | ~static_cast<std::uint32_t>(index);
}

inline float candidate_score(std::uint64_t key) { return score_of(static_cast<std::uint32_t>(key >> 32)); }

inline std::int32_t candidate_item(std::uint64_t key) { return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key)); }

inline bool is_tie(std::uint64_t a, std::uint64_t b) { return (a ^ b) >> 32 == 0; }

// The order of the candidates of a query.
struct Worse {
    const TopKProblem& problem;
    std::int64_t query;

    [[gnu::always_inline]] bool operator()(std::uint64_t a, std::uint64_t b) const {
        if (__builtin_expect(is_tie(a, b), 0)) return of_equals(a, b);
        return a < b;
    }

    [[gnu::noinline]] bool of_equals(std::uint64_t a, std::uint64_t b) const {
        if (!problem.tie_items) return a < b;
        const std::uint64_t place_a = place_of(candidate_item(a)), place_b = place_of(candidate_item(b));
        return place_a == place_b ? a < b : place_a > place_b;
    }

    std::uint64_t place_of(std::int32_t item) const {
        const std::uint64_t hash = problem.tie_items[item];
        return mixed(problem.tie_queries ? hash ^ problem.tie_queries[query] : hash);
    }
};

// Puts `key` at or below `place` of a heap with the worst key on top.
template <class Order>
inline void sift(std::uint64_t* heap, std::int64_t size, std::int64_t place, std::uint64_t key, const Order& worse) {
    for (std::int64_t child; (child = 2 * place + 1) < size; place = child) {
        child += child + 1 < size && worse(heap[child + 1], heap[child]);
        if (!worse(heap[child], key)) break;
        heap[place] = heap[child];
    }
    heap[place] = key;
}

template <class Order>
inline void make_heap(std::uint64_t* heap, std::int64_t size, const Order& worse) {
    for (std::int64_t place = size / 2; place-- > 0;) sift(heap, size, place, heap[place], worse);
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
    const Worse worse{block.problem, block.first + user};
    std::int64_t& count = block.count[user];
    if (count == n && !worse(heap[0], key)) return;
    if (is_seen(block.problem, block.first + user, item)) return;
    if (count < n) {
        heap[count++] = key;
        if (count < n) return;
        make_heap(heap, n, worse);
    } else {
        sift(heap, n, 0, key, worse);
    }
    block.threshold[user] = candidate_score(heap[0]);
}

// The row of the item at a place of the order; places beyond the last repeat it.
inline const float* row_at(const TopKProblem& problem, std::int64_t place) {
    return problem.items + problem.order[place < problem.n_order ? place : problem.n_order - 1] * problem.k;
}

// Rows of the items at order[start:], for one vector of them.
inline void item_rows(const TopKProblem& problem, std::int64_t start, const float* (&rows)[score_lanes]) {
    for (int i = 0; i < score_lanes; ++i) rows[i] = row_at(problem, start + i);
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

// Columns from:to of the items of a panel.
inline void pack_panel(const TopKBlock& block, std::int64_t start, std::int64_t from, std::int64_t to) {
    for (int c = 0; c < panel_items; c += score_lanes) {
        const float* rows[score_lanes];
        item_rows(block.problem, start + c, rows);
        for_each_column(rows, from, to, [&](std::int64_t p, Scores column) {
            store<float, score_lanes>(block.panel + p * panel_items + c, column);
        });
    }
}

// Adds up the sparse part of the scores of all users at the places from `start` on.
inline void add_sparse(const TopKBlock& block, std::int64_t start) {
    const Csr<float>&history = block.problem.history, &S = block.problem.sparse;
    const std::uint32_t places = static_cast<std::uint32_t>(block.places);
    const std::int64_t first_entry = history.indptr[block.first];
    const std::int64_t last_entry = history.indptr[block.first + block.users];
    __builtin_memset(block.sums, 0, block.users * block.places * sizeof(float));
    for (std::int64_t user = 0; user < block.users; ++user) {
        float* sums = block.sums + user * block.places;
        const std::int64_t end = history.indptr[block.first + user + 1];
        for (std::int64_t e = history.indptr[block.first + user]; e < end; ++e) {
            const std::int64_t later = block.cursor[e + sparse_ahead < last_entry ? e + sparse_ahead - first_entry : 0];
            __builtin_prefetch(S.indices + later);
            __builtin_prefetch(S.data + later);
            const float value = history.data[e];
            const std::int64_t row_end = S.indptr[history.indices[e] + 1];
            std::int64_t p = block.cursor[e - first_entry];
            for (; p < row_end; ++p) {
                // Unsigned, so that an unsorted row ends here as well.
                const std::uint32_t place = static_cast<std::uint32_t>(S.indices[p]) - static_cast<std::uint32_t>(start);
                if (place >= places) break;
                sums[place] = add_product<float, 1>(sums[place], value, S.data[p]);
            }
            block.cursor[e - first_entry] = p;
        }
    }
}

// The scores of one user from the dot products with the items of a vector of the panel, and the sparse sums.
[[gnu::always_inline]] inline Scores finished(const TopKBlock& block, Scores dots, Scores offset, const float* sums,
                                              int first) {
    const Scores bias = load<float, score_lanes>(block.bias + first);
    if (!block.problem.weight) {
        const Scores score = (offset + bias) + dots;
        return sums ? score + load<float, score_lanes>(sums + first) : score;
    }
    const Scores one = broadcast<float, score_lanes>(1), cosines = dots * (offset * bias);
    const Scores below = cosines > one ? one : cosines;
    return (below < -one ? -one : below) * load<float, score_lanes>(block.weight + first);
}

// The sparse sums of one user from place `start` on, or null.
inline const float* sums_of(const TopKBlock& block, std::int64_t start, std::int32_t user) {
    return block.places ? block.sums + user * block.places + start % block.places : nullptr;
}

// Adds the scores of a panel that are good enough to the candidates of one user.
[[gnu::always_inline]] inline void select_row(const TopKBlock& block, std::int64_t start, std::int32_t user,
                                              Scores (&dots)[block_cols]) {
    constexpr int W = score_lanes;
    const Scores offset = broadcast<float, W>(block.problem.offset[block.first + user]);
    const Scores threshold = broadcast<float, W>(block.threshold[user]);
    const float* sums = sums_of(block, start, user);
    std::uint64_t good = 0;
    for (int c = 0; c < block_cols; ++c) {
        dots[c] = finished(block, dots[c], offset, sums, c * W);
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

// Whether a score of the panel may be good enough for a user, given the products up to stop number `stop`.
// Rounding is monotonic, and the rests cover that of the products.
[[gnu::always_inline]] inline bool can_reach(const TopKBlock& block, std::int64_t start, std::int32_t user,
                                             const Scores (&dots)[block_cols], std::int64_t stop) {
    constexpr int W = score_lanes;
    const TopKProblem& problem = block.problem;
    const std::int64_t query = block.first + user;
    const Scores offset = broadcast<float, W>(problem.offset[query]);
    const Scores threshold = broadcast<float, W>(block.threshold[user]);
    const Scores user_rest = broadcast<float, W>(problem.user_rest[stop * problem.n_queries + query]);
    const float* rest = problem.item_rest + stop * problem.n_order + start;
    const float* sums = sums_of(block, start, user);
    const bool whole = start + panel_items <= problem.n_order;
    std::uint64_t good = !whole;
    for (int c = 0; c < block_cols && whole; ++c)
        good |= at_least(finished(block, dots[c] + user_rest * load<float, W>(rest + c * W), offset, sums, c * W), threshold);
    return good;
}

// Continues the products of a register block of users, of which `filled` count, with the packed columns
// from:to of a panel. `number` is the place of the first one in `alive`.
[[gnu::always_inline]] inline void score_tile(const TopKBlock& block, const std::int32_t* users, std::int64_t number,
                                              int filled, std::int64_t from, std::int64_t to,
                                              Scores (&acc)[block_rows][block_cols]) {
    constexpr int W = score_lanes, Rows = block_rows, Cols = block_cols;
    constexpr std::int64_t ahead = 12 * panel_items;  // a panel longer than the first-level cache
    const TopKProblem& problem = block.problem;
    const float* x[Rows];
    for (int r = 0; r < Rows; ++r) {
        const int place = r < filled ? r : 0;
        x[r] = problem.users + (block.first + users[place]) * problem.k;
        for (int c = 0; c < Cols; ++c)
            acc[r][c] = from ? load<float, W>(block.partial + (number + place) * panel_items + c * W) : Scores{};
    }
    const float* panel = block.panel + from * panel_items;
    for (std::int64_t p = from; p < to; ++p, panel += panel_items) {
        Scores y[Cols];
        for (int c = 0; c < Cols; ++c) y[c] = load<float, W>(panel + c * W);
        for (int c = 0; c < Cols; ++c) __builtin_prefetch(panel + ahead + c * W);
        for (int r = 0; r < Rows; ++r) {
            const Scores a = broadcast<float, W>(x[r][p]);
            for (int c = 0; c < Cols; ++c) acc[r][c] = add_product<float, W>(acc[r][c], a, y[c]);
        }
    }
}

// Scores the active users on the panel of items order[start:].
inline void score_panel(const TopKBlock& block, std::int64_t start, std::int64_t n_active) {
    constexpr int W = score_lanes, Rows = block_rows, Cols = block_cols;
    const TopKProblem& problem = block.problem;
    const std::int32_t* users = block.active;
    std::int64_t from = 0;
    for (std::int64_t stop = 0; n_active; ++stop) {
        const bool last = stop == problem.n_stops;
        const std::int64_t to = last ? problem.k : problem.stops[stop];
        pack_panel(block, start, from, to);
        std::int64_t left = 0;
        for (std::int64_t i = 0; i < n_active; i += Rows) {
            const int filled = n_active - i < Rows ? static_cast<int>(n_active - i) : Rows;
            std::int32_t here[Rows];  // which `alive` may be overwritten with
            for (int r = 0; r < filled; ++r) here[r] = users[i + r];
            Scores acc[Rows][Cols];
            score_tile(block, here, i, filled, from, to, acc);
            for (int r = 0; r < Rows; ++r) {
                if (r >= filled) continue;
                if (last) {
                    select_row(block, start, here[r], acc[r]);
                } else if (can_reach(block, start, here[r], acc[r], stop)) {
                    for (int c = 0; c < Cols; ++c) store<float, W>(block.partial + left * panel_items + c * W, acc[r][c]);
                    block.alive[left++] = here[r];
                }
            }
        }
        if (last) return;
        users = block.alive, n_active = left, from = to;
    }
}

// Bit i says whether item i of a panel that is not packed may be good enough for a user: by a product whose additions
// come in the fastest order, and a bound on the rounding of both. The rows of the next panel are fetched meanwhile.
inline std::uint64_t near_enough(const TopKBlock& block, std::int64_t start, std::int32_t user) {
    constexpr int W = score_lanes;
    const TopKProblem& problem = block.problem;
    const std::int64_t k = problem.k;
    const float* x = problem.users + (block.first + user) * k;
    const float most = problem.user_size[block.first + user] * problem.size[start];
    const float error = most * static_cast<float>((k + 16) * 0x1p-23) + static_cast<float>(k * 0x1p-148);
    if (!(error < __FLT_MAX__)) return ~std::uint64_t{0};
    const Scores offset = broadcast<float, W>(problem.offset[block.first + user]);
    const Scores threshold = broadcast<float, W>(block.threshold[user]);
    std::uint64_t good = 0;
    for (int c = 0; c < block_cols; ++c) {
        const float *rows[W], *next[W];
        item_rows(problem, start + c * W, rows);
        item_rows(problem, start + c * W + panel_items, next);
        Scores parts[W] = {}, dots = {};
        std::int64_t p = 0;
        for (; p + W <= k; p += W) {
            const Scores here = load<float, W>(x + p);
            for (int i = 0; i < W; ++i) parts[i] = add_product<float, W>(parts[i], here, load<float, W>(rows[i] + p));
            for (const float* row : next) __builtin_prefetch(row + p);
        }
        transpose<float, W>(parts);
        for (; p < k; ++p) dots = add_product<float, W>(dots, broadcast<float, W>(x[p]), load_column(rows, p));
        for (const Scores& part : parts) dots += part;
        const Scores score = finished(block, dots + broadcast<float, W>(error), offset, nullptr, c * W);
        good |= at_least(score, threshold) << (c * W);
    }
    return good;
}

// Scores one user on a panel without packing it, which would take longer for a single user.
inline void score_alone(const TopKBlock& block, std::int64_t start, std::int32_t user) {
    constexpr int W = score_lanes;
    const TopKProblem& problem = block.problem;
    const float* x = problem.users + (block.first + user) * problem.k;
    const bool bounded = problem.size && !problem.weight;
    std::uint64_t left = ~std::uint64_t{0} >> (64 - panel_items);
    if (bounded) left &= near_enough(block, start, user);
    if (!left) return;
    float dots[panel_items];
    for (float& dot : dots) dot = __builtin_nanf("");
    while (left) {
        const float* rows[W];
        int places[W];
        for (int i = 0; i < W; ++i) {  // beyond the last one, that again
            places[i] = left ? __builtin_ctzll(left) : places[i - 1];
            rows[i] = row_at(problem, start + places[i]);
            left &= left - 1;
            const float* later = row_at(problem, start + panel_items + places[i]);
            for (std::int64_t p = 0; p < problem.k && !bounded; p += 64 / sizeof(float)) __builtin_prefetch(later + p);
        }
        Scores sum = {};
        for_each_column(rows, 0, problem.k, [&](std::int64_t p, Scores column) {
            sum = add_product<float, W>(sum, broadcast<float, W>(x[p]), column);
        });
        for (int i = 0; i < W; ++i) dots[places[i]] = sum[i];
    }
    Scores found[block_cols];
    for (int c = 0; c < block_cols; ++c) found[c] = load<float, W>(dots + c * W);
    select_row(block, start, user, found);
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

// Sorts a heap, best first.
template <class Order>
inline void sort_heap(std::uint64_t* heap, std::int64_t size, const Order& worse) {
    for (std::int64_t last = size; last-- > 1;) {
        const std::uint64_t worst = heap[0];
        sift(heap, last, 0, heap[last], worse);
        heap[last] = worst;
    }
}

// Writes the candidates of one user, best first.
inline void write_found(const TopKBlock& block, std::int32_t user) {
    const TopKProblem& problem = block.problem;
    std::uint64_t* heap = block.heaps + user * problem.n;
    const std::int64_t count = block.count[user], query = block.first + user;
    const Worse worse{problem, query};
    if (count < problem.n) make_heap(heap, count, worse);
    sort_heap(heap, count, [](std::uint64_t a, std::uint64_t b) { return a < b; });  // by score, which takes less time
    for (std::int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && is_tie(heap[i], heap[end]); ++end) {}
        if (end == i + 1) continue;
        make_heap(heap + i, end - i, worse);
        sort_heap(heap + i, end - i, worse);
    }
    problem.counts[query] = count;
    for (std::int64_t i = 0; i < problem.n; ++i) {
        problem.found[query * problem.n + i] = i < count ? candidate_item(heap[i]) : -1;
        problem.scores[query * problem.n + i] = i < count ? candidate_score(heap[i]) : -__builtin_inff();
    }
}

// Cuts arrays off a piece of scratch memory, or measures how much they need.
class Arena {
public:
    explicit Arena(void* memory) : start_(static_cast<char*>(memory)) {}

    template <class T>
    T* take(std::int64_t size) {
        T* array = start_ ? reinterpret_cast<T*>(start_ + used_) : nullptr;
        used_ += round_up(size * static_cast<std::int64_t>(sizeof(T)), 64);
        return array;
    }

    std::size_t used() const { return used_; }

private:
    char* start_;
    std::size_t used_ = 0;
};

// Gives a block of users its memory; returns how much that is.
inline std::size_t place_arrays(TopKBlock& block, void* memory, std::int64_t block_users, std::int64_t entries) {
    const TopKProblem& problem = block.problem;
    Arena arena(memory);
    block.places = tile_places(problem, block_users);
    block.panel = arena.take<float>(problem.k * panel_items);
    block.bias = arena.take<float>(panel_items);
    block.weight = arena.take<float>(panel_items);
    block.heaps = arena.take<std::uint64_t>(block_users * problem.n);
    block.count = arena.take<std::int64_t>(block_users);
    block.active = arena.take<std::int32_t>(block_users);
    block.threshold = arena.take<float>(block_users);
    block.alive = arena.take<std::int32_t>(block_users);
    block.partial = arena.take<float>(problem.n_stops ? block_users * panel_items : 0);
    block.sums = arena.take<float>(block_users * block.places);
    block.cursor = arena.take<std::int64_t>(entries);
    return arena.used();
}

// Bytes of scratch memory for blocks of `block_users` queries.
inline std::size_t topk_workspace(const TopKProblem& problem, std::int64_t block_users) {
    std::int64_t entries = 0;
    for (std::int64_t begin = 0; begin < problem.n_queries; begin += block_users) {
        const std::int64_t end = begin + block_users < problem.n_queries ? begin + block_users : problem.n_queries;
        const std::int64_t here = history_size(problem, begin, end);
        entries = here > entries ? here : entries;
    }
    TopKBlock block{problem, 0, block_users};
    return place_arrays(block, nullptr, block_users, entries);
}

// Answers queries begin:end, a whole block but for the last.
inline void topk_users(const TopKProblem& problem, std::int64_t begin, std::int64_t end, std::int64_t block_users,
                       void* workspace) {
    const std::int64_t users = end - begin, entries = history_size(problem, begin, end);
    TopKBlock block{problem, begin, users};
    place_arrays(block, workspace, block_users, entries);
    for (std::int64_t user = 0; user < users; ++user) {
        block.active[user] = static_cast<std::int32_t>(user);
        block.count[user] = 0;
        block.threshold[user] = -__FLT_MAX__;
    }
    for (std::int64_t e = 0; e < entries; ++e)
        block.cursor[e] = problem.sparse.indptr[problem.history.indices[problem.history.indptr[begin] + e]];
    std::int64_t left = users;
    for (std::int64_t start = 0; start < problem.n_order; start += panel_items) {
        left = still_active(block, start, left);
        if (!left) break;
        if (block.places && start % block.places == 0) add_sparse(block, start);
        pack_bias(block, start);
        if (left == 1) score_alone(block, start, block.active[0]);
        else score_panel(block, start, left);
    }
    for (std::int64_t user = 0; user < users; ++user) write_found(block, static_cast<std::int32_t>(user));
}

// The place of `column` among the entries begin:end of a row, or end.
inline std::int64_t find_column(const Csr<float>& S, std::int64_t begin, std::int64_t end, std::int64_t column) {
    const std::int64_t place = lower_bound(S.indices, begin, end, column);
    return place < end && S.indices[place] == column ? place : end;
}

// Entries of history times S, to the bits of add_sparse.
inline void sparse_pairs(const Csr<float>& history, const Csr<float>& S, const std::int64_t* rows,
                         const std::int64_t* columns, float* found, std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
        float sum = 0;
        for (std::int64_t e = history.indptr[rows[pair]]; e < history.indptr[rows[pair] + 1]; ++e) {
            const std::int64_t row_end = S.indptr[history.indices[e] + 1];
            const std::int64_t place = find_column(S, S.indptr[history.indices[e]], row_end, columns[pair]);
            if (place < row_end) sum = add_product<float, 1>(sum, history.data[e], S.data[place]);
        }
        found[pair] = sum;
    }
}

// Rows of history times S, to the same bits.
inline void sparse_rows(const Csr<float>& history, const Csr<float>& S, float* Y, std::int64_t begin, std::int64_t end) {
    __builtin_memset(Y + begin * S.n_cols, 0, (end - begin) * S.n_cols * sizeof(float));
    for (std::int64_t row = begin; row < end; ++row) {
        float* y = Y + row * S.n_cols;
        for (std::int64_t e = history.indptr[row]; e < history.indptr[row + 1]; ++e) {
            const float value = history.data[e];
            const std::int32_t other = history.indices[e];
            for (std::int64_t p = S.indptr[other]; p < S.indptr[other + 1]; ++p)
                y[S.indices[p]] = add_product<float, 1>(y[S.indices[p]], value, S.data[p]);
        }
    }
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
            for (int i = 0; i < score_lanes; ++i) sum = add_product<float, score_lanes>(sum, a[i], b[i]);
        }
        for (; p < problem.k; ++p)
            sum = add_product<float, score_lanes>(sum, load_column(left, p), load_column(right, p));
        for (int i = 0; i < filled; ++i) problem.dots[begin + i] = sum[i];
    }
}

}  // namespace lowrank::LOWRANK_ISA
