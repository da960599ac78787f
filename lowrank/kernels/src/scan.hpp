// Retrieval for one query: sums over postings, and products with vectors stored as small integers.

#pragma once

#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

// Products of 16-bit with 8-bit integers, summed in 32 bits: the compiler has an instruction for pairs.
inline std::int32_t code_dot(const std::int16_t* query, const std::int8_t* codes, std::int64_t k) {
    std::int32_t sum = 0;
    for (std::int64_t j = 0; j < k; ++j) sum += query[j] * static_cast<std::int16_t>(codes[j]);
    return sum;
}

inline void scan_codes(const CodeScan& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const auto dot = static_cast<float>(code_dot(p.query, p.codes + row * p.k, p.k));
        const float base = p.base ? p.base[row] * p.weight : 0.0f;
        p.out[row] = base + p.scale[row] * dot;
    }
}

}  // namespace lowrank::LOWRANK_ISA
