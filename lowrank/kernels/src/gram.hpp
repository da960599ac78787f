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
inline constexpr int rows_at_once = many_registers ? 1 : 4;  // rows of a tile per iteration of the inner loop

template <class T>
struct Tile {
    const T* rows;
    std::int64_t n;
    std::int64_t stride;
};

// The n vectors to gather next, at most as many as the tile has rows. Each block prefetches a line of each, one per
// row, because a processor has only a limited number of outstanding loads.
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
    unrolled<Rows, Cols>([&](auto r, auto c) __attribute__((always_inline)) {
        acc[r][c] = load<T, W>(start + r * width + j + c * W);
    });
    const T* row = tile.rows;
#pragma GCC unroll rows_at_once
    for (std::int64_t p = 0; p < tile.n; ++p, row += tile.stride) {
        if (p < ahead.n) __builtin_prefetch(ahead.vectors + ahead.indices[p] * ahead.step, 0, 2);
        Vec<T, W> b[Cols];
        unrolled<Cols>([&](auto c) __attribute__((always_inline)) { b[c] = load<T, W>(row + j + c * W); });
        unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
            const Vec<T, W> a = broadcast<T, W>(row[i + r]);
            unrolled<Cols>([&](auto c) __attribute__((always_inline)) {
                acc[r][c] = add_product<T, W>(acc[r][c], a, b[c]);
            });
        });
    }
    unrolled<Rows, Cols>([&](auto r, auto c) __attribute__((always_inline)) {
        store<T, W>(g + r * width + j + c * W, acc[r][c]);
    });
}

// The lower right quarters of `count` vector-sized blocks on the diagonal, from column `first` on. Two of them share a
// vector; the products of this vector with its rotations include each pair of numbers.
template <class T, int Vectors>
[[gnu::always_inline]] inline void gram_corners(const Tile<T>& tile, std::int64_t first, std::int64_t count,
                                                const T* start, T* g, std::int64_t width) {
    constexpr int W = lanes<T>, half = W / 2, turns = half / 2 + 1;
    Vec<T, W> acc[Vectors][turns] = {};
    const T* row = tile.rows + first + half;
    for (std::int64_t p = 0; p < tile.n; ++p, row += tile.stride)
        unrolled<Vectors>([&](auto c) __attribute__((always_inline)) {
            const auto low = load<T, lanes<T> / 2>(row + 2 * c * W);
            const auto high = load<T, lanes<T> / 2>(row + (c < Vectors - 1 ? 2 * c + 1 : count - 1) * W);
            const Vec<T, W> v = shuffle<W>(low, high, [](int i) { return i; });
            unrolled<turns>([&](auto by) __attribute__((always_inline)) {
                const auto place = [](int i) { return i / half * half + (i + decltype(by)::value) % half; };
                acc[c][by] = add_product<T, W>(acc[c][by], v, shuffle<W>(v, v, place));
            });
        });
    for (std::int64_t corner = 0; corner < count; ++corner)
        for (int by = 0; by < turns; ++by)
            for (int l = 0; l < (2 * by < half ? half : by); ++l) {
                const std::int64_t other = (l + by) % half, i = l < other ? l : other, j = l < other ? other : l;
                const std::int64_t place = (first + half + corner * W) * (width + 1) + i * width + j;
                g[place] = start[place] + acc[corner / 2][by][corner % 2 * half + l];
            }
}

// G = start + sum_p t_p t_p', both width x width, in strips of rows and register blocks of nearly equal size. Where a
// vector is as long as two strips, every second strip leaves its corner to gram_corners.
template <class T>
inline void gram_update(const Tile<T>& tile, std::int64_t width, const T* start, T* g, Ahead<T> ahead = {}) {
    constexpr int W = lanes<T>, corners = 8;
    constexpr bool halved = W == 2 * block_rows;
    if (halved && width == W) return gram_block<T, W, 1>(tile, 0, 0, start, g, width, ahead);
    for (std::int64_t i = 0; i < width; i += block_rows) {
        std::int64_t j = round_up(i, W), left = (width - j) / W;
        const bool alone = left == 1 || (many_registers && left % block_cols == 1);
        if (halved && i > 0 && alone) {  // the last vector of two strips
            if (i < j) {
                gram_block<T, W, 1>(tile, i, width - W, start + i * width, g + i * width, width, ahead);
                ahead = ahead.next_line();
            }
            --left;
        }
        for (std::int64_t blocks = (left + block_cols - 1) / block_cols; blocks > 0; --blocks) {
            const std::int64_t cols = (left + blocks - 1) / blocks;
            with_constant<block_cols>(cols, [&](auto c) __attribute__((always_inline)) {
                gram_block<T, block_rows, c>(tile, i, j, start + i * width, g + i * width, width, ahead);
            });
            ahead = ahead.next_line();
            j += cols * W;
            left -= cols;
        }
    }
    for (std::int64_t first = 0; halved && first < width; first += corners * W) {
        const std::int64_t count = width - first < corners * W ? (width - first) / W : corners;
        if constexpr (halved)
            with_constant<corners / 2>((count + 1) / 2, [&](auto vectors) __attribute__((always_inline)) {
                gram_corners<T, vectors>(tile, first, count, start, g, width);
            });
    }
}

}  // namespace lowrank::LOWRANK_ISA
