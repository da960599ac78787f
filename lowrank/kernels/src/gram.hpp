// Gram matrices of short, wide tiles: G += sum_p t_p t_p', upper triangle only.
//
// A tile holds rows t_p of `width` numbers (a multiple of the vector length) followed by two
// "side" numbers; their products with t_p give the right-hand side and the column sums in the
// same pass. Register blocks of Rows x Cols vectors stay in registers for all rows of the tile.

#pragma once

#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

// Rows of a register block, and the most vectors across: 24 accumulators of 32 registers, 12 of 16
// with AVX2, 8 of 16 where a multiply-add needs a temporary.
inline constexpr int block_rows = many_registers ? 8 : 4;
inline constexpr int block_cols = many_registers || LOWRANK_VECTOR_BYTES > 16 ? 3 : 2;
inline constexpr int side_columns = 2;

template <class T>
struct Tile {
    const T* rows;
    std::int64_t n;
    std::int64_t stride;
};

// G[i + r, j : j + Cols * lanes] += sum_p t_p[i + r] * t_p[j : j + Cols * lanes]
template <class T, int Rows, int Cols>
[[gnu::always_inline]] inline void gram_block(const Tile<T>& tile, std::int64_t i, std::int64_t j, T* g,
                                              std::int64_t g_stride) {
    constexpr int W = lanes<T>;
    Vec<T, W> acc[Rows][Cols];
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) acc[r][c] = load<T, W>(g + r * g_stride + j + c * W);
    const T* row = tile.rows;
    for (std::int64_t p = 0; p < tile.n; ++p, row += tile.stride) {
        Vec<T, W> b[Cols];
        unrolled<Cols>([&](auto c) __attribute__((always_inline)) { b[c] = load<T, W>(row + j + c * W); });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
            const Vec<T, W> a = broadcast<T, W>(row[i + r]);
            unrolled<Cols>([&](auto c) __attribute__((always_inline)) { acc[r][c] += a * b[c]; });
        });
    }
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) store<T, W>(g + r * g_stride + j + c * W, acc[r][c]);
}

// As gram_block with `cols` vectors across, at most Most.
template <class T, int Rows, int Most>
inline void gram_blocks(const Tile<T>& tile, std::int64_t i, std::int64_t j, std::int64_t cols, T* g,
                        std::int64_t g_stride) {
    if (cols == Most) return gram_block<T, Rows, Most>(tile, i, j, g, g_stride);
    if constexpr (Most > 1) gram_blocks<T, Rows, Most - 1>(tile, i, j, cols, g, g_stride);
}

// One strip of rows, from column `j` to `width`, in register blocks of nearly equal size.
template <class T, int Rows, int Most>
inline void gram_strip(const Tile<T>& tile, std::int64_t i, std::int64_t j, std::int64_t width, T* g) {
    std::int64_t left = (width - j) / lanes<T>;
    for (std::int64_t blocks = (left + Most - 1) / Most; blocks > 0; --blocks) {
        const std::int64_t cols = (left + blocks - 1) / blocks;
        gram_blocks<T, Rows, Most>(tile, i, j, cols, g, width);
        j += cols * lanes<T>;
        left -= cols;
    }
}

// G is width x width. Calls between(i) when the rows before i are done.
template <class T, class Between>
[[gnu::always_inline]] inline void gram_update(const Tile<T>& tile, std::int64_t width, T* g, const Between& between) {
    for (std::int64_t i = 0; i < width; i += block_rows) {
        gram_strip<T, block_rows, block_cols>(tile, i, i / lanes<T> * lanes<T>, width, g + i * width);
        between(i + block_rows);
    }
}

// Adds the side products to the rows behind those of G.
template <class T>
inline void side_update(const Tile<T>& tile, std::int64_t width, T* g) {
    gram_strip<T, side_columns, 2 * block_cols>(tile, width, 0, width, g + width * width);
}

}  // namespace lowrank::LOWRANK_ISA
