// Gram matrices of short, wide tiles: G += sum_p t_p t_p', upper triangle only.
//
// A tile holds rows t_p of `width` numbers (a multiple of the vector length) followed by two
// "side" numbers; their products with t_p give the right-hand side and the column sums in the
// same pass. Register blocks of Rows x Cols vectors stay in registers for all rows of the tile.

#pragma once

#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

// Rows of a register block, and the most vectors across: 24 accumulators of 32 registers with
// AVX-512, 12 of 16 with AVX2, 8 of 16 where a multiply-add needs a temporary.
inline constexpr int block_rows = LOWRANK_VECTOR_BYTES == 64 ? 8 : 4;
inline constexpr int block_cols = LOWRANK_VECTOR_BYTES == 16 ? 2 : 3;
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
        for (int c = 0; c < Cols; ++c) b[c] = load<T, W>(row + j + c * W);
        for (int r = 0; r < Rows; ++r) {
            const Vec<T, W> a = broadcast<T, W>(row[i + r]);
            for (int c = 0; c < Cols; ++c) acc[r][c] += a * b[c];
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) store<T, W>(g + r * g_stride + j + c * W, acc[r][c]);
}

// One strip of rows, from column `j` to `width`, in register blocks of nearly equal size.
template <class T, int Rows>
inline void gram_strip(const Tile<T>& tile, std::int64_t i, std::int64_t j, std::int64_t width, T* g) {
    constexpr int W = lanes<T>;
    std::int64_t left = (width - j) / W;
    for (std::int64_t blocks = (left + block_cols - 1) / block_cols; blocks > 0; --blocks) {
        const std::int64_t cols = (left + blocks - 1) / blocks;
        if constexpr (block_cols >= 3) {
            if (cols == 3) gram_block<T, Rows, 3>(tile, i, j, g, width);
        }
        if (cols == 2) gram_block<T, Rows, 2>(tile, i, j, g, width);
        if (cols == 1) gram_block<T, Rows, 1>(tile, i, j, g, width);
        j += cols * W;
        left -= cols;
    }
}

// G is (width + side_columns) x width; the last rows receive the side products.
template <class T>
inline void gram_update(const Tile<T>& tile, std::int64_t width, T* g) {
    for (std::int64_t i = 0; i < width; i += block_rows) {
        const std::int64_t first_column = i / lanes<T> * lanes<T>;
        gram_strip<T, block_rows>(tile, i, first_column, width, g + i * width);
    }
    gram_strip<T, side_columns>(tile, width, 0, width, g + width * width);
}

}  // namespace lowrank::LOWRANK_ISA
