// Entry points of top-k search, sparse scores and text search (topk.hpp, scan.hpp).

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "bindings.hpp"
#include "parallel.hpp"

namespace lowrank {

namespace {

// Users that share one pass over the packed items: enough that packing costs little, few enough
// that the threads are evenly busy and the candidates take about 8 MB.
std::int64_t topk_block(std::int64_t n_queries, std::int64_t n, int threads) {
    const std::int64_t share = (n_queries + threads - 1) / threads;
    const std::int64_t even = std::max<std::int64_t>(share / 8, 256);
    const std::int64_t small = (std::int64_t{1} << 20) / std::max<std::int64_t>(n, 1);
    const std::int64_t block = std::min({std::int64_t{1024}, share, even, small});
    return (std::max<std::int64_t>(block, 1) + 7) / 8 * 8;
}

// A CSR matrix with checked row starts, so that no file can make a kernel leave its arrays. The columns of S are not
// checked if the kernel checks them.
Csr<float> checked_rows(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<float>& data,
                        std::int64_t n_cols) {
    require(indptr.size() > 0, "indptr must have one entry more than rows");
    const Csr<float> A = csr<float>(indptr, indices, data, static_cast<std::int64_t>(indptr.size()) - 1, n_cols);
    require(std::is_sorted(A.indptr, A.indptr + A.n_rows + 1), "indptr must not fall");
    return A;
}

Csr<float> checked_csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<float>& data,
                       std::int64_t n_cols) {
    const Csr<float> A = checked_rows(indptr, indices, data, n_cols);
    const auto outside = [n_cols](std::int32_t index) { return index < 0 || index >= n_cols; };
    require(std::none_of(A.indices, A.indices + indices.size(), outside), "indices must be those of columns");
    return A;
}

template <class T>
using Maybe1 = std::optional<In1<T>>;
using Rows = std::tuple<In1<std::int64_t>, In1<std::int32_t>, In1<float>>;
// The named tuples of topk.py and the two matrices of a SparsePart.
using OrderArrays = std::tuple<In1<std::int32_t>, Maybe1<float>, Maybe1<float>, Maybe1<float>>;
using StopArrays = std::tuple<In1<std::int64_t>, In2<float>, In2<float>>;
using SparseArrays = std::tuple<Rows, Rows>;
using SeenArrays = std::tuple<In1<std::int64_t>, In1<std::int64_t>, In1<std::int32_t>>;
using TieArrays = std::tuple<In1<std::uint64_t>, Maybe1<std::uint64_t>>;
using FoundArrays = std::tuple<Out2<std::int32_t>, Out2<float>, Out1<std::int64_t>>;

void best_items(In2<float> users, In2<float> items, In1<float> offset, In1<float> bias, Maybe1<float> weight,
                OrderArrays in_order, StopArrays product_stops, std::optional<SparseArrays> sparse,
                std::optional<SeenArrays> seen, std::optional<TieArrays> ties, FoundArrays result, int threads) {
    const auto& [order, user_size, size, lift] = in_order;
    const auto& [stops, user_rest, item_rest] = product_stops;
    const auto& [found, scores, counts] = result;
    const std::size_t n_queries = users.shape(0), n_items = items.shape(0);
    require(users.shape(1) == items.shape(1), "users and items must have the same number of columns");
    require(offset.size() == n_queries && counts.size() == n_queries, "offset and counts must have one entry per user");
    require(bias.size() == n_items && (!weight || weight->size() == n_items),
            "bias and weight must have one entry per item");
    require(found.shape(0) == n_queries && scores.shape(0) == n_queries && found.shape(1) == scores.shape(1),
            "found and scores must have one row per user and the same number of columns");
    std::uint32_t last = 0;  // of all indices, so that they are compared many at a time
    for (std::size_t i = 0; i < order.size(); ++i) last = std::max(last, static_cast<std::uint32_t>(order.data()[i]));
    require(order.size() == 0 || last < n_items, "order must hold indices of items");
    TopKProblem problem{};
    problem.users = users.data(), problem.offset = offset.data(), problem.items = items.data();
    problem.bias = bias.data(), problem.weight = weight ? weight->data() : nullptr;
    problem.k = static_cast<std::int64_t>(users.shape(1));
    problem.order = order.data(), problem.n_order = static_cast<std::int64_t>(order.size());
    problem.n_queries = static_cast<std::int64_t>(n_queries), problem.n = static_cast<std::int64_t>(found.shape(1));
    problem.found = found.data(), problem.scores = scores.data(), problem.counts = counts.data();
    if (user_size && size && lift) {
        require(user_size->size() == n_queries, "user_size must have one entry per user");
        require(size->size() == order.size() && lift->size() == order.size(), "size and lift must have one entry per item of order");
        problem.user_size = user_size->data(), problem.size = size->data(), problem.lift = lift->data();
    }
    require(user_rest.shape(0) == stops.size() && item_rest.shape(0) == stops.size() &&
                (stops.size() == 0 || (user_rest.shape(1) == n_queries && item_rest.shape(1) == order.size())),
            "the rests must have one row per stop, and one column per user or item of order");
    for (std::size_t i = 0; i < stops.size(); ++i)
        require((i ? stops.data()[i - 1] : 0) < stops.data()[i] && stops.data()[i] < problem.k,
                "stops must ascend between 0 and the number of columns");
    problem.stops = stops.data(), problem.n_stops = static_cast<std::int64_t>(stops.size());
    problem.user_rest = user_rest.data(), problem.item_rest = item_rest.data();
    if (sparse) {
        const auto& [history, weights] = *sparse;
        const auto& [history_indptr, history_indices, history_data] = history;
        const auto& [sparse_indptr, sparse_indices, sparse_data] = weights;
        problem.sparse = checked_rows(sparse_indptr, sparse_indices, sparse_data, problem.n_order);
        problem.history = checked_csr(history_indptr, history_indices, history_data, problem.sparse.n_rows);
        require(problem.history.n_rows == problem.n_queries, "history must have one row per user");
        require(!problem.weight && !problem.size, "weighted cosines and bounds of the order are for factors alone");
    }
    if (seen) {
        const auto& [seen_rows, seen_indptr, seen_indices] = *seen;
        require(seen_rows.size() == n_queries, "seen_rows must have one entry per user");
        for (std::size_t i = 0; i < n_queries; ++i) {
            const std::size_t row = seen_rows.data()[i];
            require(row < seen_indptr.size() && row + 1 < seen_indptr.size(), "seen_rows must hold indices of rows");
            const std::int64_t begin = seen_indptr.data()[row], end = seen_indptr.data()[row + 1];
            require(0 <= begin && begin <= end && end <= static_cast<std::int64_t>(seen_indices.size()),
                    "seen_indptr must ascend from 0 to the number of seen items");
        }
        problem.seen_rows = seen_rows.data(), problem.seen_indptr = seen_indptr.data();
        problem.seen_indices = seen_indices.data();
    }
    if (ties) {
        const auto& [tie_items, tie_queries] = *ties;
        require(tie_items.size() == n_items, "ties must have one entry per item");
        require(!tie_queries || tie_queries->size() == n_queries, "ties must have one entry per user");
        problem.tie_items = tie_items.data();
        problem.tie_queries = tie_queries ? tie_queries->data() : nullptr;
    }
    const nb::gil_scoped_release release;
    const RetrievalKernels& kernel = active->retrieval;
    const std::int64_t step = topk_block(problem.n_queries, problem.n, threads);
    on_ranges(problem.n_queries, step, threads, kernel.topk_workspace(problem, step),
              [&](auto begin, auto end, void* memory) { kernel.topk_users(problem, begin, end, step, memory); });
}

void sparse_pairs(In1<std::int64_t> history_indptr, In1<std::int32_t> history_indices, In1<float> history_data,
                  In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> rows,
                  In1<std::int64_t> columns, Out1<float> found, int threads) {
    require(rows.size() == found.size() && columns.size() == found.size(),
            "rows, columns and found must have the same length");
    const Csr<float> S = checked_rows(indptr, indices, data, 0);
    const Csr<float> history = checked_csr(history_indptr, history_indices, history_data, S.n_rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
        require(0 <= rows.data()[i] && rows.data()[i] < history.n_rows, "rows must be those of the history");
    const nb::gil_scoped_release release;
    on_ranges(found.size(), 64, threads, 0, [&](auto begin, auto end, void*) {
        active->retrieval.sparse_pairs(history, S, rows.data(), columns.data(), found.data(), begin, end);
    });
}

void sparse_rows(In1<std::int64_t> history_indptr, In1<std::int32_t> history_indices, In1<float> history_data,
                 In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, Out2<float> Y, int threads) {
    const Csr<float> S = checked_csr(indptr, indices, data, static_cast<std::int64_t>(Y.shape(1)));
    const Csr<float> history = checked_csr(history_indptr, history_indices, history_data, S.n_rows);
    require(history.n_rows == static_cast<std::int64_t>(Y.shape(0)), "Y must have one row per row of the history");
    const nb::gil_scoped_release release;
    on_rows(history.indptr, history.n_rows, 1, threads, 0, [&](auto begin, auto end, void*) {
        active->retrieval.sparse_rows(history, S, Y.data(), begin, end);
    });
}

void gram_rows(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> column_indptr,
               In1<std::int32_t> column_indices, In1<float> column_data, In1<float> weight, In1<float> scale,
               In1<float> out, std::int64_t first, Out2<std::int32_t> columns, Out2<float> values,
               Out1<std::int64_t> counts, int threads) {
    const std::int64_t n = static_cast<std::int64_t>(counts.size());
    const GramProblem problem{
        checked_csr(indptr, indices, data, static_cast<std::int64_t>(out.size())),
        checked_csr(column_indptr, column_indices, column_data, static_cast<std::int64_t>(indptr.size()) - 1),
        weight.data(), scale.data(), out.data(), static_cast<std::int64_t>(columns.shape(1)), first,
        columns.data(), values.data(), counts.data()};
    require(weight.size() + 1 == indptr.size() && scale.size() + 1 == column_indptr.size(),
            "weight and scale must have one entry per row");
    require(0 <= first && first + n <= problem.by_column.n_rows && problem.most > 0, "the rows must be among those of X'");
    require(static_cast<std::int64_t>(columns.shape(0)) == n && values.shape(0) == columns.shape(0) &&
                values.shape(1) == columns.shape(1), "columns and values must have one row per row of the result");
    const nb::gil_scoped_release release;
    on_ranges(n, 4, threads, active->retrieval.row_workspace(problem.by_row.n_cols, problem.most),
              [&](auto begin, auto end, void* memory) { active->retrieval.gram_rows(problem, begin, end, memory); });
}

void pair_rows(In1<std::int64_t> indptr, In1<std::int32_t> places, In1<float> place_weights, In1<std::int32_t> items,
               In1<float> weights, In1<std::int32_t> lags, In1<float> decay, std::int64_t n_cols, In1<std::int64_t> rows,
               Out2<std::int32_t> columns, Out2<float> values, Out1<std::int64_t> counts, int threads) {
    const std::size_t n = counts.size(), n_places = items.size();
    const PairProblem problem{
        checked_csr(indptr, places, place_weights, static_cast<std::int64_t>(n_places)), items.data(), weights.data(),
        lags.data(), decay.data(), static_cast<std::int64_t>(decay.size()) - 1, n_cols, rows.data(),
        static_cast<std::int64_t>(columns.shape(1)), columns.data(), values.data(), counts.data()};
    require(weights.size() == n_places && lags.size() == n_places, "items, weights and lags must have the same length");
    for (std::size_t p = 0; p < n_places; ++p) {
        require(0 <= items.data()[p] && items.data()[p] < n_cols, "items must be those of columns");
        require(static_cast<std::size_t>(lags.data()[p]) <= n_places - p, "lags must end within the places");
    }
    for (std::size_t i = 0; i < n; ++i)
        require(0 <= rows.data()[i] && rows.data()[i] < problem.by_item.n_rows, "rows must be those of items");
    require(decay.size() > 0 && problem.most > 0, "there must be a lag and a column");
    require(rows.size() == n && columns.shape(0) == n && values.shape(0) == n && values.shape(1) == columns.shape(1),
            "columns and values must have one row per row of the result");
    const nb::gil_scoped_release release;
    on_ranges(n, 4, threads, active->retrieval.row_workspace(n_cols, problem.most),
              [&](auto begin, auto end, void* memory) { active->retrieval.pair_rows(problem, begin, end, memory); });
}

void pair_dots(In2<float> left, In2<float> right, In1<std::int64_t> rows, In1<std::int64_t> others, Out1<float> dots,
               int threads) {
    require(left.shape(1) == right.shape(1), "left and right must have the same number of columns");
    require(rows.size() == dots.size() && others.size() == dots.size(), "rows, others and dots must have the same length");
    for (std::size_t i = 0; i < rows.size(); ++i)
        require(static_cast<std::size_t>(rows.data()[i]) < left.shape(0) &&
                    static_cast<std::size_t>(others.data()[i]) < right.shape(0),
                "rows and others must hold indices of rows of left and right");
    const PairDots problem{left.data(), right.data(), static_cast<std::int64_t>(left.shape(1)), rows.data(),
                           others.data(), dots.data()};
    const nb::gil_scoped_release release;
    on_ranges(dots.size(), 4096, threads, 0,
              [&](auto begin, auto end, void*) { active->retrieval.pair_dots(problem, begin, end); });
}

// Adds rows of a CSR matrix, each times its factor, to `out`; only these rows are read.
void sum_rows(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<float> data, In1<std::int64_t> rows,
              In1<float> factors, Out1<float> out) {
    require(rows.size() == factors.size(), "rows and factors must have the same length");
    require(indices.size() == data.size(), "indices and data must have the same length");
    const auto n = static_cast<std::uint32_t>(out.size());
    bool inside = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t row = rows.data()[i];
        require(row + 1 < indptr.size(), "rows must be those of the matrix");
        const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
        require(0 <= begin && begin <= end && end <= static_cast<std::int64_t>(indices.size()),
                "indptr must ascend from 0 to the number of stored entries");
        const float factor = factors.data()[i];
        for (std::int64_t p = begin; p < end; ++p) {
            const auto column = static_cast<std::uint32_t>(indices.data()[p]);
            if (column < n) out.data()[column] += factor * data.data()[p];
            else inside = false;
        }
    }
    require(inside, "indices must be those of columns");
}

// Hashes texts by their bytes, eight at a time.
void hash_texts(In1<std::uint8_t> bytes, In1<std::int64_t> offsets, Out1<std::uint64_t> hashes) {
    require(offsets.size() == hashes.size() + 1, "offsets must have one entry more than texts");
    const std::int64_t* starts = offsets.data();
    require(std::is_sorted(starts, starts + offsets.size()) && starts[0] >= 0 &&
                starts[hashes.size()] <= static_cast<std::int64_t>(bytes.size()),
            "offsets must ascend from 0 to the number of bytes");
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        const std::uint8_t* text = bytes.data() + starts[i];
        const std::int64_t length = starts[i + 1] - starts[i];
        std::uint64_t hash = mixed(static_cast<std::uint64_t>(length));
        for (std::int64_t at = 0; at < length; at += 8) {
            std::uint64_t word = 0;
            for (std::int64_t b = 0; b < 8 && at + b < length; ++b)
                word |= static_cast<std::uint64_t>(text[at + b]) << 8 * b;
            hash = mixed(hash ^ word);
        }
        hashes.data()[i] = hash;
    }
}

// Writes the positions of the largest scores, best first, ties by lower position; returns their number.
std::int64_t largest(In1<float> scores, Out1<std::int64_t> found) {
    using Entry = std::pair<float, std::int64_t>;
    const auto better = [](const Entry& a, const Entry& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    const auto n = static_cast<std::int64_t>(scores.size());
    const auto most = static_cast<std::int64_t>(found.size());
    std::vector<Entry> kept;
    kept.reserve(2 * most + 1);
    float bar = std::numeric_limits<float>::lowest();  // minus infinity is never found, nor is NaN
    if (constexpr std::int64_t least = 64; most && n >= 2 * least * most) {
        // As many blocks have a score that reaches this bar, so that few other scores are compared twice.
        const std::int64_t size = n / (4 * most) < least ? least : n / (4 * most) / least * least;
        std::vector<float> maxima(n / size);
        active->retrieval.block_maxima(scores.data(), size, n / size, maxima.data());
        std::nth_element(maxima.begin(), maxima.begin() + (most - 1), maxima.end(), std::greater<>{});
        bar = maxima[most - 1];
    }
    const auto next = [&](std::int64_t i) { return active->retrieval.next_at_least(scores.data(), i, n, bar); };
    for (std::int64_t i = next(0); most && i < n; i = next(i + 1)) {
        kept.emplace_back(scores.data()[i], i);
        if (std::ssize(kept) < 2 * most) continue;
        std::nth_element(kept.begin(), kept.begin() + (most - 1), kept.end(), better);
        kept.resize(most);
        bar = std::nextafter(kept[most - 1].first, std::numeric_limits<float>::infinity());
    }
    std::sort(kept.begin(), kept.end(), better);
    const std::int64_t count = std::min<std::int64_t>(std::ssize(kept), most);
    for (std::int64_t i = 0; i < count; ++i) found.data()[i] = kept[i].second;
    return count;
}

}  // namespace

void add_search(nb::module_& m) {
    add(m, "best_items", &best_items, "users", "items", "offset", "bias", "weight", "order", "stops", "sparse", "seen",
        "ties", "found", "threads");
    add(m, "hash_texts", &hash_texts, "bytes", "offsets", "hashes");
    add(m, "sparse_pairs", &sparse_pairs, "history_indptr", "history_indices", "history_data", "indptr", "indices",
        "data", "rows", "columns", "found", "threads");
    add(m, "sparse_rows", &sparse_rows, "history_indptr", "history_indices", "history_data", "indptr", "indices",
        "data", "Y", "threads");
    add(m, "gram_rows", &gram_rows, "indptr", "indices", "data", "column_indptr", "column_indices", "column_data",
        "weight", "scale", "out", "first", "columns", "values", "counts", "threads");
    add(m, "pair_rows", &pair_rows, "indptr", "places", "place_weights", "items", "weights", "lags", "decay", "n_cols",
        "rows", "columns", "values", "counts", "threads");
    add(m, "sum_rows", &sum_rows, "indptr", "indices", "data", "rows", "factors", "out");
    add(m, "largest", &largest, "scores", "found");
    add(m, "pair_dots", &pair_dots, "left", "right", "rows", "others", "dots", "threads");
}

}  // namespace lowrank
