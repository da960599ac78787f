// Gram matrices of short, wide tiles: start + sum_p t_p t_p', upper triangle only.
//
// A tile holds rows t_p of numbers, a multiple of the vector length. Register blocks of Rows x Cols
// vectors stay in registers for all rows of the tile.

#pragma once

#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

// Rows of a register block, and the most vectors across: 24 accumulators of 32 registers, 12 of 16
// with AVX2, 8 of 16 where a multiply-add needs a temporary.
inline constexpr int block_rows = many_registers ? 8 : 4;
inline constexpr int block_cols = many_registers || LOWRANK_VECTOR_BYTES > 16 ? 3 : 2;

template <class T>
struct Tile {
    const T* rows;
    std::int64_t n;
    std::int64_t stride;
};

// n vectors that are gathered next, at most as many as the tile has rows. Each block fetches a line of each, one per
// row: all at once would be more than a processor waits for at a time.
template <class T>
struct Ahead {
    static constexpr int line = 64 / sizeof(T);
    const T* vectors = nullptr;
    std::int64_t k = 0, step = 0;
    const std::int32_t* indices = nullptr;
    std::int64_t n = 0;

    Ahead next_line() const { return {vectors + line, k - line, step, indices, k > line ? n : 0}; }
};

// G[i + r, j : j + Cols * lanes] = start[i + r, j : ...] + sum_p t_p[i + r] * t_p[j : ...], where `g` and
// `start` are at row i.
template <class T, int Rows, int Cols>
[[gnu::always_inline]] inline void gram_block(const Tile<T>& tile, std::int64_t i, std::int64_t j, const T* start,
                                              T* g, std::int64_t width, const Ahead<T>& ahead) {
    constexpr int W = lanes<T>;
    Vec<T, W> acc[Rows][Cols];
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) acc[r][c] = load<T, W>(start + r * width + j + c * W);
    const T* row = tile.rows;
    for (std::int64_t p = 0; p < tile.n; ++p, row += tile.stride) {
        if (p < ahead.n) __builtin_prefetch(ahead.vectors + ahead.indices[p] * ahead.step, 0, 2);
        Vec<T, W> b[Cols];
        unrolled<Cols>([&](auto c) __attribute__((always_inline)) { b[c] = load<T, W>(row + j + c * W); });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
            const Vec<T, W> a = broadcast<T, W>(row[i + r]);
            unrolled<Cols>([&](auto c) __attribute__((always_inline)) { acc[r][c] += a * b[c]; });
        });
    }
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) store<T, W>(g + r * width + j + c * W, acc[r][c]);
}

// As gram_block with `cols` vectors across, at most Most.
template <class T, int Rows, int Most>
inline void gram_blocks(const Tile<T>& tile, std::int64_t i, std::int64_t j, std::int64_t cols, const T* start,
                        T* g, std::int64_t width, const Ahead<T>& ahead) {
    if (cols == Most) return gram_block<T, Rows, Most>(tile, i, j, start, g, width, ahead);
    if constexpr (Most > 1) gram_blocks<T, Rows, Most - 1>(tile, i, j, cols, start, g, width, ahead);
}

// G = start + sum_p t_p t_p', both width x width, in strips of rows and register blocks of nearly equal size.
template <class T>
inline void gram_update(const Tile<T>& tile, std::int64_t width, const T* start, T* g, Ahead<T> ahead = {}) {
    for (std::int64_t i = 0; i < width; i += block_rows) {
        std::int64_t j = i / lanes<T> * lanes<T>, left = (width - j) / lanes<T>;
        for (std::int64_t blocks = (left + block_cols - 1) / block_cols; blocks > 0; --blocks) {
            const std::int64_t cols = (left + blocks - 1) / blocks;
            gram_blocks<T, block_rows, block_cols>(tile, i, j, cols, start + i * width, g + i * width, width, ahead);
            ahead = ahead.next_line();
            j += cols * lanes<T>;
            left -= cols;
        }
    }
}

}  // namespace lowrank::LOWRANK_ISA
