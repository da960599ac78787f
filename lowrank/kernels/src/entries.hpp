// The entries of a sparse matrix: values as codes of a few levels, and rows in order.
//
// Nothing here computes in floating point, so that one form serves all instruction sets.

#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace lowrank::entries {

inline constexpr int most_levels = 256;

// Writes the code of each value: its index in `levels`, to which new values are appended. Values are compared by their
// bits. Returns the number of levels, or -1 if there are more than 256.
inline int code_levels(const float* values, std::int64_t n, std::uint8_t* codes, float* levels, int count) {
    constexpr std::uint32_t slots = 1024;
    std::int16_t place[slots];
    std::uint32_t known[slots];
    std::fill(place, place + slots, std::int16_t{-1});
    const auto slot_of = [&](float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        std::uint32_t slot = (bits * 2654435769u) >> 22;
        while (place[slot] >= 0 && known[slot] != bits) slot = (slot + 1) % slots;
        known[slot] = bits;
        return slot;
    };
    for (int code = 0; code < count; ++code) place[slot_of(levels[code])] = static_cast<std::int16_t>(code);
    for (std::int64_t p = 0; p < n; ++p) {
        const std::uint32_t slot = slot_of(values[p]);
        if (place[slot] < 0) {
            if (count == most_levels) return -1;
            levels[count] = values[p];
            place[slot] = static_cast<std::int16_t>(count++);
        }
        codes[p] = static_cast<std::uint8_t>(place[slot]);
    }
    return count;
}

// Writes the code of each key: its index among the `distinct` keys, to which new keys are appended. `slots` is a hash
// table of codes, -1 if empty; its size is a power of two, twice the room for keys. Stops if there is no room for a new
// key. Returns the number of keys that are done, and the number of distinct ones.
template <class T>
std::pair<std::int64_t, std::int64_t> code_keys(const T* keys, std::int64_t n, std::int32_t* codes,
                                                std::int64_t* distinct, std::int64_t room, std::int64_t count,
                                                std::int32_t* slots) {
    const int shift = std::countl_zero(static_cast<std::uint64_t>(room));
    for (std::int64_t p = 0; p < n; ++p) {
        const std::int64_t key = keys[p];
        if (p > 0 && key == keys[p - 1]) {  // as for ratings that are sorted by user
            codes[p] = codes[p - 1];
            continue;
        }
        std::uint64_t slot = static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15u >> shift;
        while (slots[slot] >= 0 && distinct[slots[slot]] != key) slot = (slot + 1) & (2 * room - 1);
        if (slots[slot] < 0) {
            if (count == room) return {p, count};
            distinct[count] = key;
            slots[slot] = static_cast<std::int32_t>(count++);
        }
        codes[p] = slots[slot];
    }
    return {n, count};
}

// found[p] = table[keys[p]]
inline void look_up(const std::int32_t* keys, std::int64_t n, const std::int32_t* table, std::int32_t* found,
                    int threads) {
    on_ranges(n, 1 << 18, threads, 0, [&](auto begin, auto end, void*) {
        for (std::int64_t p = begin; p < end; ++p) found[p] = table[keys[p]];
    });
}

// Writes the indptr of entries with the given rows, in any order; returns whether the rows are sorted.
inline bool row_offsets(const std::int32_t* rows, std::int64_t n, std::int64_t* indptr, std::int64_t n_rows) {
    std::fill(indptr, indptr + n_rows + 1, 0);
    bool sorted = true;
    for (std::int64_t p = 0; p < n; ++p) {
        ++indptr[rows[p] + 1];
        sorted &= p == 0 || rows[p - 1] <= rows[p];
    }
    for (std::int64_t row = 0; row < n_rows; ++row) indptr[row + 1] += indptr[row];
    return sorted;
}

// The first row (or column) of number `share` of `shares` with about equal numbers of entries.
inline std::int64_t first_of_share(const std::int64_t* indptr, std::int64_t n_rows, int share, int shares) {
    if (share == 0 || n_rows == 0) return 0;
    if (share == shares) return n_rows;
    return std::upper_bound(indptr, indptr + n_rows, indptr[n_rows] / shares * share) - indptr - 1;
}

// An array of numbers of `size` bytes each, one for each entry.
struct Numbers {
    char* start;
    std::int64_t size;
};

// Calls body(from, to) with the arrays as numbers of 1, 4 or 8 bytes.
template <class Body>
void as_numbers(std::int64_t size, char* from, char* to, const Body& body) {
    if (size == 1) body(reinterpret_cast<std::uint8_t*>(from), reinterpret_cast<std::uint8_t*>(to));
    else if (size == 4) body(reinterpret_cast<std::uint32_t*>(from), reinterpret_cast<std::uint32_t*>(to));
    else body(reinterpret_cast<std::uint64_t*>(from), reinterpret_cast<std::uint64_t*>(to));
}

// Sorts arrays of one number per entry by row, stably. Each thread takes a part of the entries, and counts how many of
// each row are in the parts before.
inline void scatter(const std::int32_t* rows, std::int64_t n, const std::int64_t* indptr, std::int64_t n_rows,
                    const std::vector<Numbers>& sources, const std::vector<Numbers>& targets, int threads) {
    constexpr std::int64_t block = 2048;  // entries whose positions fit in a cache
    const int parts = static_cast<int>(std::clamp<std::int64_t>(n / (8 * n_rows + 1), 1, threads));
    std::vector<std::vector<std::int64_t>> next(parts);
    on_threads(parts, [&](int part) {
        next[part].assign(n_rows, 0);
        if (parts == 1) return;
        for (std::int64_t p = n * part / parts; p < n * (part + 1) / parts; ++p) ++next[part][rows[p]];
    });
    for (std::int64_t row = 0; row < n_rows; ++row) {
        std::int64_t start = indptr[row];
        for (int part = 0; part < parts; ++part) start += std::exchange(next[part][row], start);
    }
    on_threads(parts, [&](int part) {
        std::int64_t places[block];
        const std::int64_t end = n * (part + 1) / parts;
        for (std::int64_t begin = n * part / parts; begin < end; begin += block) {
            const std::int64_t count = std::min(block, end - begin);
            for (std::int64_t i = 0; i < count; ++i) places[i] = next[part][rows[begin + i]]++;
            for (std::size_t array = 0; array < sources.size(); ++array) {
                const std::int64_t size = sources[array].size;
                as_numbers(size, sources[array].start + begin * size, targets[array].start,
                           [&](auto* from, auto* to) { for (std::int64_t i = 0; i < count; ++i) to[places[i]] = from[i]; });
            }
        }
    });
}

// The number of threads that may share the columns of a CSR matrix. Each finds its columns of a row by bisection, so
// that rows which are not sorted are for one thread, which takes them as they are.
inline int threads_for_columns(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t n_rows,
                               int threads) {
    for (std::int64_t row = 0; threads > 1 && row < n_rows; ++row)
        if (!std::is_sorted(indices + indptr[row], indices + indptr[row + 1])) return 1;
    return threads;
}

// Writes the transpose of a CSR matrix, given the indptr of the result; without data if to_data is null. On several
// threads, the indices must be sorted.
template <class T>
void transpose(const std::int64_t* indptr, const std::int32_t* indices, const T* data, std::int64_t n_rows,
               const std::int64_t* to_indptr, std::int64_t n_columns, std::int32_t* to_indices, T* to_data,
               int threads) {
    on_threads(threads, [&](int number) {
        const std::int64_t begin = first_of_share(to_indptr, n_columns, number, threads);
        const std::int64_t end = first_of_share(to_indptr, n_columns, number + 1, threads);
        std::vector<std::int64_t> next(to_indptr + begin, to_indptr + end);
        for (std::int64_t row = 0; row < n_rows; ++row) {
            const std::int32_t* stop = indices + indptr[row + 1];
            const std::int32_t* entry = indices + indptr[row];
            if (begin > 0) entry = std::lower_bound(entry, stop, begin);
            for (; entry < stop && *entry < end; ++entry) {
                const std::int64_t place = next[*entry - begin]++;
                to_indices[place] = static_cast<std::int32_t>(row);
                if (to_data) to_data[place] = data[entry - indices];
            }
        }
    });
}

// Sorts distinct keys by their upper halves, stably; keys with equal upper halves must be in the order of their lower
// halves before.
inline void sort_keys(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& spare) {
    constexpr std::size_t digits = 256;
    if (keys.size() < digits / 4) return std::sort(keys.begin(), keys.end());
    const std::uint64_t largest = *std::max_element(keys.begin(), keys.end());
    spare.resize(keys.size());
    for (int shift = 32; shift < 64 && largest >> shift; shift += 8) {
        std::size_t places[digits] = {}, start = 0;
        for (const std::uint64_t key : keys) ++places[key >> shift & (digits - 1)];
        for (std::size_t& place : places) start += std::exchange(place, start);
        for (const std::uint64_t key : keys) spare[places[key >> shift & (digits - 1)]++] = key;
        keys.swap(spare);
    }
}

// Sorts the entries of each row by index, stably.
inline void sort_rows(const std::int64_t* indptr, std::int64_t n_rows, std::int32_t* indices,
                      const std::vector<Numbers>& columns, int threads) {
    on_rows(indptr, n_rows, 1, threads, 0, [&](auto begin, auto end, void*) {
        std::vector<std::uint64_t> order, spare;
        std::vector<char> copy;
        for (std::int64_t row = begin; row < end; ++row) {
            std::int32_t* first = indices + indptr[row];
            const std::int64_t n = indptr[row + 1] - indptr[row];
            if (std::is_sorted(first, first + n)) continue;
            order.resize(n);
            for (std::int64_t p = 0; p < n; ++p)
                order[p] = static_cast<std::uint64_t>(static_cast<std::uint32_t>(first[p])) << 32 | p;
            sort_keys(order, spare);
            for (std::int64_t p = 0; p < n; ++p) first[p] = static_cast<std::int32_t>(order[p] >> 32);
            for (const Numbers& column : columns) {
                char* numbers = column.start + indptr[row] * column.size;
                copy.assign(numbers, numbers + n * column.size);
                as_numbers(column.size, copy.data(), numbers, [&](auto* from, auto* to) {
                    for (std::int64_t p = 0; p < n; ++p) to[p] = from[static_cast<std::uint32_t>(order[p])];
                });
            }
        }
    });
}

}  // namespace lowrank::entries
