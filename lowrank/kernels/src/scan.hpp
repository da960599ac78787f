// Retrieval for one query: sums over postings, and products with vectors stored as small integers.

#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "topk.hpp"

namespace lowrank::LOWRANK_ISA {

// Products of 16-bit integers with those of 4 bits, two in a byte, summed in 32 bits.
inline std::int32_t code_dot(const std::int16_t* query, const std::uint8_t* codes, std::int64_t width) {
    std::int32_t low = 0, high = 0;
    for (std::int64_t j = 0; j < width; ++j) {
        low += query[j] * static_cast<std::int16_t>(codes[j] & 15);
        high += query[width + j] * static_cast<std::int16_t>(codes[j] >> 4);
    }
    return low + high;
}

inline void scan_codes(const CodeScan& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const auto dot = static_cast<float>(code_dot(p.query, p.codes + row * p.width, p.width));
        const float base = p.base ? p.base[row] * p.weight : 0.0f;
        p.out[row] = base + (p.factor * p.scale[row] * (dot - p.centre) + p.slack * p.error[row]);
    }
}

// Writes the largest of each `size` scores, a multiple of the lanes; NaN never is.
inline void block_maxima(const float* scores, std::int64_t size, std::int64_t count, float* maxima) {
    for (std::int64_t block = 0; block < count; ++block, scores += size) {
        Scores most = broadcast<float, score_lanes>(std::numeric_limits<float>::lowest());
        for (std::int64_t i = 0; i < size; i += score_lanes) {
            const Scores some = load<float, score_lanes>(scores + i);
            most = some > most ? some : most;
        }
        maxima[block] = most[0];
        for (int lane = 1; lane < score_lanes; ++lane) maxima[block] = std::max<float>(maxima[block], most[lane]);
    }
}

// The first position from `i` on whose score is at least `bar`, or n.
inline std::int64_t next_at_least(const float* scores, std::int64_t i, std::int64_t n, float bar) {
    const Scores bars = broadcast<float, score_lanes>(bar);
    for (; i + score_lanes <= n; i += score_lanes)
        if (const std::uint64_t mask = at_least(load<float, score_lanes>(scores + i), bars)) return i + std::countr_zero(mask);
    while (i < n && !(scores[i] >= bar)) ++i;
    return i;
}

}  // namespace lowrank::LOWRANK_ISA
