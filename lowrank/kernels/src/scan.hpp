// Search for the largest of many scores: maxima of blocks, and the next score above a bar.

#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "topk.hpp"

namespace lowrank::LOWRANK_ISA {

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
