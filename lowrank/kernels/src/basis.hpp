// Products of a tall basis V (n x c, rows of any stride) with a block W (n x width, contiguous):
// the coefficients V' W, the projection W - V H of an orthogonalisation, and V H itself.
//
// Rows are processed in blocks that stay in the second-level cache, so that V is read from memory once.

#pragma once

#include "spmm.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t basis_block_rows = 60;  // divisible by basis_rows
inline constexpr int basis_columns = many_registers ? 4 : 2;  // vectors of W in registers at once
// Columns of V whose coefficients, or rows whose products, are summed at once, limited by the registers for the sums
// and for the addresses of the rows.
template <int Cols>
inline constexpr int basis_rows = many_registers ? (Cols == 4 ? 4 : 8) : 6;

// Numbers in a cache line, for prefetching: rows of V are too far apart for the hardware prefetcher.
template <class T>
inline constexpr int line_length = 64 / static_cast<int>(sizeof(T));

template <class T>
struct Basis {
    const T* rows;
    std::int64_t stride;
    std::int64_t size;  // c, the number of vectors
};

// P[i:i+Rows, :] += V[begin:end, i:i+Rows]' W[begin:end, :]
template <class T, int N, int Cols, int Rows>
[[gnu::always_inline]] inline void coefficient_block(const Basis<T>& V, const T* W, std::int64_t width, T* P,
                                                     std::int64_t i, std::int64_t begin, std::int64_t end) {
    Vec<T, N> acc[Rows][Cols];
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) acc[r][c] = load<T, N>(P + (i + r) * width + c * N);
    for (std::int64_t row = begin; row < end; ++row) {
        const T* v_row = V.rows + row * V.stride + i;
        for (int r = 0; r < Rows; r += line_length<T>)
            __builtin_prefetch(v_row + basis_block_rows * V.stride + r);
        Vec<T, N> w[Cols];
        for (int c = 0; c < Cols; ++c) w[c] = load<T, N>(W + row * width + c * N);
        for (int r = 0; r < Rows; ++r) {
            const Vec<T, N> v = broadcast<T, N>(v_row[r]);
            for (int c = 0; c < Cols; ++c) acc[r][c] = add_product<T, N>(acc[r][c], v, w[c]);
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) store<T, N>(P + (i + r) * width + c * N, acc[r][c]);
}

template <class T, int N, int Cols>
inline void coefficient_chunk(const Basis<T>& V, const T* W, std::int64_t width, T* P, std::int64_t begin,
                              std::int64_t end) {
    constexpr int rows = basis_rows<Cols>;
    std::int64_t i = 0;
    for (; i + rows <= V.size; i += rows) coefficient_block<T, N, Cols, rows>(V, W, width, P, i, begin, end);
    with_constant<rows - 1>(V.size - i, [&](auto rest) {
        coefficient_block<T, N, Cols, rest>(V, W, width, P, i, begin, end);
    });
}

// W[row:row+Rows, :] = V[row:row+Rows, :] H, or += it, with H of contiguous rows.
template <bool Add, class T, int N, int Cols, int Rows>
[[gnu::always_inline]] inline void product_block(const Basis<T>& V, const T* H, std::int64_t width, T* W,
                                                 std::int64_t row) {
    Vec<T, N> acc[Rows][Cols] = {};
    if constexpr (Add)
        for (int r = 0; r < Rows; ++r)
            for (int c = 0; c < Cols; ++c) acc[r][c] = load<T, N>(W + (row + r) * width + c * N);
    const T* v_rows = V.rows + row * V.stride;
    const std::int64_t ahead = V.stride < 128 ? basis_block_rows : Rows;
    for (std::int64_t line = 0; line < V.size; line += line_length<T>) {
        for (int r = 0; r < Rows; ++r) __builtin_prefetch(v_rows + (ahead + r) * V.stride + line);
        const std::int64_t end = line + line_length<T> < V.size ? line + line_length<T> : V.size;
        for (std::int64_t i = line; i < end; ++i) {
            Vec<T, N> h[Cols];
            for (int c = 0; c < Cols; ++c) h[c] = load<T, N>(H + (i * Cols + c) * N);
            for (int r = 0; r < Rows; ++r) {
                const Vec<T, N> v = broadcast<T, N>(v_rows[r * V.stride + i]);
                for (int c = 0; c < Cols; ++c) acc[r][c] = add_product<T, N>(acc[r][c], v, h[c]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < Cols; ++c) store<T, N>(W + (row + r) * width + c * N, acc[r][c]);
}

template <bool Add, class T, int N, int Cols>
inline void product_chunk(const Basis<T>& V, const T* H, std::int64_t width, T* W, std::int64_t begin,
                          std::int64_t end) {
    constexpr int rows = basis_rows<Cols>;
    std::int64_t row = begin;
    for (; row + rows <= end; row += rows) product_block<Add, T, N, Cols, rows>(V, H, width, W, row);
    for (; row < end; ++row) product_block<Add, T, N, Cols, 1>(V, H, width, W, row);
}

// Calls chunk.operator()<N, Cols>(first_column, first_row, end_row) for all columns of one block of rows after the
// other, so that V is in the cache for all columns.
template <class T, class Chunk>
inline void for_each_tile(std::int64_t width, std::int64_t begin, std::int64_t end, const Chunk& chunk) {
    for (std::int64_t start = begin; start < end; start += basis_block_rows) {
        const std::int64_t stop = end - start < basis_block_rows ? end : start + basis_block_rows;
        for_each_chunk<T, basis_columns>(width, [&]<int N, int Cols>(std::int64_t j) {
            chunk.template operator()<N, Cols>(j, start, stop);
        });
    }
}

// P += V[begin:end]' W[begin:end], shape c x width.
template <class T>
void coefficient_rows(const T* V, std::int64_t stride, std::int64_t size, const T* W, std::int64_t width, T* P,
                      std::int64_t begin, std::int64_t end) {
    for_each_tile<T>(width, begin, end, [&]<int N, int Cols>(std::int64_t j, std::int64_t start, std::int64_t stop) {
        coefficient_chunk<T, N, Cols>({V, stride, size}, W + j, width, P + j, start, stop);
    });
}

// The factor times H, of shape c x width; columns that product_rows processes at once are next to each other.
template <class T>
void pack_columns(const T* H, std::int64_t size, std::int64_t width, T factor, T* packed) {
    for_each_chunk<T, basis_columns>(width, [&]<int N, int Cols>(std::int64_t j) {
        for (std::int64_t i = 0; i < size; ++i)
            for (int c = 0; c < N * Cols; ++c) packed[j * size + i * N * Cols + c] = factor * H[i * width + j + c];
    });
}

// W[begin:end] = V[begin:end] H, or += it, with H of shape c x width as pack_columns writes it.
template <bool Add, class T>
void product_rows(const T* V, std::int64_t stride, std::int64_t size, const T* packed, std::int64_t width, T* W,
                  std::int64_t begin, std::int64_t end) {
    for_each_tile<T>(width, begin, end, [&]<int N, int Cols>(std::int64_t j, std::int64_t start, std::int64_t stop) {
        product_chunk<Add, T, N, Cols>({V, stride, size}, packed + j * size, width, W + j, start, stop);
    });
}

// squares[j] += the sum over the rows begin:end of (P[:, j] - V[:, j] s[j])^2, with V contiguous, for `width` columns.
template <class T>
void distance_rows(const T* P, std::int64_t stride, const T* V, const T* s, std::int64_t width, T* squares,
                   std::int64_t begin, std::int64_t end) {
    for_each_tile<T>(width, begin, end, [&]<int N, int Cols>(std::int64_t j, std::int64_t start, std::int64_t stop) {
        Vec<T, N> sum[Cols] = {};
        for (std::int64_t row = start; row < stop; ++row)
            for (int c = 0; c < Cols; ++c) {
                const std::int64_t i = j + c * N;
                const Vec<T, N> point = load<T, N>(P + row * stride + i);
                const Vec<T, N> rest = subtract_product<T, N>(point, load<T, N>(V + row * width + i), load<T, N>(s + i));
                sum[c] = add_product<T, N>(sum[c], rest, rest);
            }
        for (int c = 0; c < Cols; ++c)
            store<T, N>(squares + j + c * N, load<T, N>(squares + j + c * N) + sum[c]);
    });
}

}  // namespace lowrank::LOWRANK_ISA
