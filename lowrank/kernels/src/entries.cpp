// Entry points for entries of sparse matrices (entries.hpp) and their text (fields.hpp).

#include "entries.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "fields.hpp"

namespace lowrank {

namespace {

int code_levels(In1<float> values, Out1<std::uint8_t> codes, Out1<float> levels, int count) {
    require(values.size() == codes.size(), "values and codes must have the same length");
    require(levels.size() == entries::most_levels && 0 <= count && count <= entries::most_levels, "levels must have 256 entries");
    const nb::gil_scoped_release release;
    return entries::code_levels(values.data(), values.size(), codes.data(), levels.data(), count);
}

template <class T>
std::pair<std::int64_t, std::int64_t> code_keys(In1<T> keys, Out1<std::int32_t> codes, Out1<std::int64_t> distinct,
                                                std::int64_t count, Out1<std::int32_t> slots) {
    const std::size_t room = distinct.size();
    require(keys.size() == codes.size(), "keys and codes must have the same length");
    require(room > 0 && std::has_single_bit(room) && slots.size() == 2 * room, "slots must be twice a power of two");
    require(count >= 0 && static_cast<std::size_t>(count) <= room, "count must be that of distinct keys");
    const nb::gil_scoped_release release;
    return entries::code_keys(keys.data(), keys.size(), codes.data(), distinct.data(), room, count, slots.data());
}

// The numbers of `keys` must be in 0 ... n - 1.
void check_keys(const In1<std::int32_t>& keys, std::int64_t n) {
    const auto outside = [=](std::int32_t key) { return key < 0 || key >= n; };
    require(std::none_of(keys.data(), keys.data() + keys.size(), outside), "keys must be those of the table");
}

void look_up(In1<std::int32_t> keys, In1<std::int32_t> table, Out1<std::int32_t> found, int threads) {
    require(keys.size() == found.size(), "keys and found must have the same length");
    const nb::gil_scoped_release release;
    check_keys(keys, table.size());
    entries::look_up(keys.data(), keys.size(), table.data(), found.data(), threads);
}

bool row_offsets(In1<std::int32_t> rows, Out1<std::int64_t> indptr) {
    require(indptr.size() > 0, "indptr must have one entry more than rows");
    const nb::gil_scoped_release release;
    check_keys(rows, indptr.size() - 1);
    return entries::row_offsets(rows.data(), rows.size(), indptr.data(), indptr.size() - 1);
}

using Anything = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using AnyGiven = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Arrays of n numbers of 1, 4 or 8 bytes each.
template <class Array>
std::vector<entries::Numbers> numbers(const std::vector<Array>& arrays, std::size_t n) {
    std::vector<entries::Numbers> found;
    for (const Array& array : arrays) {
        const std::int64_t size = array.itemsize();
        require(array.size() == n, "all arrays must have one number per entry");
        require(size == 1 || size == 4 || size == 8, "numbers must have 1, 4 or 8 bytes");
        found.push_back({static_cast<char*>(const_cast<void*>(static_cast<const void*>(array.data()))), size});
    }
    return found;
}

void scatter(In1<std::int32_t> rows, In1<std::int64_t> indptr, const std::vector<AnyGiven>& sources,
             const std::vector<Anything>& targets, int threads) {
    const std::int64_t n_rows = static_cast<std::int64_t>(indptr.size()) - 1;
    check_offsets(indptr, rows.size(), rows.size(), n_rows);
    const auto from = numbers(sources, rows.size()), to = numbers(targets, rows.size());
    const auto alike = [](const auto& one, const auto& other) { return one.size == other.size; };
    require(std::equal(from.begin(), from.end(), to.begin(), to.end(), alike), "arrays must go to arrays like them");
    const nb::gil_scoped_release release;
    check_keys(rows, n_rows);
    entries::scatter(rows.data(), rows.size(), indptr.data(), n_rows, from, to, threads);
}

template <class T>
void transpose(In1<std::int64_t> indptr, In1<std::int32_t> indices, In1<T> data, Out1<std::int64_t> to_indptr,
               Out1<std::int32_t> to_indices, Out1<T> to_data, int threads) {
    const std::int64_t n_rows = static_cast<std::int64_t>(indptr.size()) - 1, n_columns = to_indptr.size() - 1;
    const bool is_constant = data.size() == 1 && to_data.size() == 1;  // the value of all entries
    check_offsets(indptr, indices.size(), is_constant ? indices.size() : data.size(), n_rows);
    require(std::is_sorted(indptr.data(), indptr.data() + n_rows + 1), "indptr must not fall");
    require(to_indices.size() == indices.size() && to_data.size() == data.size(), "the transpose must have as many entries");
    const nb::gil_scoped_release release;
    check_keys(indices, n_columns);
    entries::row_offsets(indices.data(), indices.size(), to_indptr.data(), n_columns);
    if (is_constant) *to_data.data() = *data.data();
    entries::transpose(indptr.data(), indices.data(), data.data(), n_rows, to_indptr.data(), n_columns,
                       to_indices.data(), is_constant ? nullptr : to_data.data(),
                       entries::threads_for_columns(indptr.data(), indices.data(), n_rows, threads));
}

void sort_rows(In1<std::int64_t> indptr, Out1<std::int32_t> indices, const std::vector<Anything>& columns, int threads) {
    const std::int64_t n_rows = static_cast<std::int64_t>(indptr.size()) - 1;
    check_offsets(indptr, indices.size(), indices.size(), n_rows);
    require(std::is_sorted(indptr.data(), indptr.data() + n_rows + 1), "indptr must not fall");
    const auto others = numbers(columns, indices.size());
    const nb::gil_scoped_release release;
    entries::sort_rows(indptr.data(), n_rows, indices.data(), others, threads);
}

std::int64_t read_rows(In1<std::uint8_t> text, const std::string& mark, int width, const std::vector<int>& places,
                       const std::vector<Anything>& arrays) {
    require(!mark.empty() && places.size() == arrays.size(), "every column must have an array");
    std::vector<fields::Column> columns;
    std::size_t room = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < places.size(); ++i) {
        require(places[i] > (i ? places[i - 1] : -1) && places[i] < width, "places must increase below the width");
        const bool is_float = arrays[i].dtype() == nb::dtype<float>();
        require(is_float || arrays[i].dtype() == nb::dtype<std::int64_t>(), "arrays must be of float32 or int64");
        void* to = arrays[i].data();
        columns.push_back({places[i], is_float ? nullptr : static_cast<std::int64_t*>(to), static_cast<float*>(to)});
        room = std::min(room, arrays[i].size());
    }
    const char* begin = reinterpret_cast<const char*>(text.data());
    const int step = static_cast<int>(mark.size());
    const nb::gil_scoped_release release;
    return fields::read_rows(begin, begin + text.size(), mark[0], step, width, columns, room);
}

template <class T>
void add_transpose(nb::module_& m) {
    add(m, "transpose", &transpose<T>, "indptr", "indices", "data", "to_indptr", "to_indices", "to_data", "threads");
}

}  // namespace

void add_entries(nb::module_& m) {
    add(m, "code_levels", &code_levels, "values", "codes", "levels", "count");
    add(m, "code_keys", &code_keys<std::int32_t>, "keys", "codes", "distinct", "count", "slots");
    add(m, "code_keys", &code_keys<std::int64_t>, "keys", "codes", "distinct", "count", "slots");
    add(m, "look_up", &look_up, "keys", "table", "found", "threads");
    add(m, "read_rows", &read_rows, "text", "mark", "width", "places", "arrays");
    add(m, "row_offsets", &row_offsets, "rows", "indptr");
    add(m, "scatter", &scatter, "rows", "indptr", "sources", "targets", "threads");
    add_transpose<std::uint8_t>(m);
    add_transpose<float>(m);
    add_transpose<double>(m);
    add(m, "sort_rows", &sort_rows, "indptr", "indices", "columns", "threads");
}

}  // namespace lowrank
