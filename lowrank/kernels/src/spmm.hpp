// Sparse times dense block, Y = A X and Y = A' X, for a CSR matrix A and row-major X and Y; and entries of a product of
// two blocks at the positions of the entries of A.
//
// The block's columns are taken in chunks of a few vectors, which stay in registers while a row
// of A is read; a width that is not a multiple of the vector length ends with shorter vectors.

#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t spmm_prefetch_distance = 32;

// Rows of X and Y are `x_step` and `y_step` numbers apart; value(row, p) is the value of entry p of A.
template <class T, int N, int Cols, class Value>
inline void matmat_chunk(const Csr<T> A, const Value value, const T* X, std::int64_t x_step, T* Y, std::int64_t y_step,
                         std::int64_t begin, std::int64_t end) {
    constexpr int line = 64 / static_cast<int>(sizeof(T));
    const std::int64_t last = A.indptr[end] - spmm_prefetch_distance - 2;
    for (std::int64_t row = begin; row < end; ++row) {
        Vec<T, N> acc[Cols] = {}, odd[Cols] = {};  // two sums, since each addition waits for the previous one
        const auto add = [&](std::int64_t p, Vec<T, N>(&sum)[Cols]) __attribute__((always_inline)) {
            const T* x = X + A.indices[p] * x_step;
            const Vec<T, N> a = broadcast<T, N>(value(row, p));
            for (int c = 0; c < Cols; ++c) sum[c] = add_product<T, N>(sum[c], a, load<T, N>(x + c * N));
        };
        const std::int64_t stop = A.indptr[row + 1];
        std::int64_t p = A.indptr[row];
        for (; p + 2 <= stop; p += 2) {
            const std::int32_t* ahead = A.indices + (p <= last ? p + spmm_prefetch_distance : p);
            for (int j = 0; j < Cols * N; j += line) {
                __builtin_prefetch(X + ahead[0] * x_step + j);
                __builtin_prefetch(X + ahead[1] * x_step + j);
            }
            add(p, acc);
            add(p + 1, odd);
        }
        if (p < stop) add(p, acc);
        for (int c = 0; c < Cols; ++c) store<T, N>(Y + row * y_step + c * N, acc[c] + odd[c]);
    }
}

// First position in indices[begin:end] that is not below `column`.
inline std::int64_t lower_bound(const std::int32_t* indices, std::int64_t begin, std::int64_t end,
                                std::int64_t column) {
    while (begin < end) {
        const std::int64_t middle = begin + (end - begin) / 2;
        if (indices[middle] < column) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

template <class T, int N, int Cols>
inline void rmatmat_chunk(const Csr<T>& A, const T* X, std::int64_t width, T* Y, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < A.n_rows; ++row) {
        Vec<T, N> x[Cols];
        for (int c = 0; c < Cols; ++c) x[c] = load<T, N>(X + row * width + c * N);
        const std::int64_t stop = A.indptr[row + 1];
        std::int64_t p = A.indptr[row];
        if (begin > 0) p = lower_bound(A.indices, p, stop, begin);
        for (; p < stop && A.indices[p] < end; ++p) {
            T* y = Y + A.indices[p] * width;
            const Vec<T, N> a = broadcast<T, N>(A.value(row, p));
            for (int c = 0; c < Cols; ++c)
                store<T, N>(y + c * N, add_product<T, N>(load<T, N>(y + c * N), a, x[c]));
        }
    }
}

// Calls chunk.operator()<N, Cols>(first_column) until all columns are done, widest chunks first, of up to Most vectors.
template <class T, int Most = 4, class Chunk>
inline void for_each_chunk(std::int64_t width, const Chunk& chunk) {
    constexpr int W = lanes<T>;
    std::int64_t j = 0;
    if constexpr (Most == 4) for (; j + 4 * W <= width; j += 4 * W) chunk.template operator()<W, 4>(j);
    for (; j + 2 * W <= width;) chunk.template operator()<W, 2>(j), j += 2 * W;
    if (j + W <= width) chunk.template operator()<W, 1>(j), j += W;
    if constexpr (W > 8) if (j + 8 <= width) chunk.template operator()<8, 1>(j), j += 8;
    if constexpr (W > 4) if (j + 4 <= width) chunk.template operator()<4, 1>(j), j += 4;
    if constexpr (W > 2) if (j + 2 <= width) chunk.template operator()<2, 1>(j), j += 2;
    if (j < width) chunk.template operator()<1, 1>(j);
}

template <class T>
void matmat_rows(const Csr<T>& A, const T* X, std::int64_t x_step, std::int64_t columns, T* Y, std::int64_t y_step,
                 std::int64_t begin, std::int64_t end) {
    const auto add = [&](const auto value) {
        for_each_chunk<T>(columns, [&]<int N, int Cols>(std::int64_t j) {
            matmat_chunk<T, N, Cols>(A, value, X + j, x_step, Y + j, y_step, begin, end);
        });
    };
    if (A.data) add([data = A.data](std::int64_t, std::int64_t p) { return data[p]; });
    else if (A.codes) add([&A](std::int64_t row, std::int64_t p) { return A.value(row, p); });
    else add([value = *A.levels](std::int64_t, std::int64_t) { return value; });
}

template <class T>
void rmatmat_cols(const Csr<T>& A, const T* X, std::int64_t width, T* Y, std::int64_t begin, std::int64_t end) {
    __builtin_memset(Y + begin * width, 0, (end - begin) * width * sizeof(T));
    for_each_chunk<T>(width, [&]<int N, int Cols>(std::int64_t j) {
        rmatmat_chunk<T, N, Cols>(A, X + j, width, Y + j, begin, end);
    });
}

template <class T>
void entry_rows(const Csr<T>& A, const T* left, const T* right, std::int64_t k, T* out, std::int64_t begin,
                std::int64_t end) {
    constexpr int W = lanes<T>;
    const std::int64_t last = A.indptr[end];
    for (std::int64_t row = begin; row < end; ++row) {
        const T* w = left + row * (k + 1);
        for (std::int64_t p = A.indptr[row]; p < A.indptr[row + 1]; ++p) {
            if (p + spmm_prefetch_distance < last)
                for (std::int64_t j = 0; j <= k; j += 64 / sizeof(T))
                    __builtin_prefetch(right + A.indices[p + spmm_prefetch_distance] * (k + 1) + j);
            const T* z = right + A.indices[p] * (k + 1);
            Vec<T, W> products{};
            std::int64_t j = 0;
            for (; j + W <= k; j += W)
                products = add_product<T, W>(products, load<T, W>(w + j), load<T, W>(z + j));
            T sum = w[k] + z[k];
            for (; j < k; ++j) sum = add_product<T, 1>(sum, w[j], z[j]);
            for (int l = 0; l < W; ++l) sum += products[l];
            out[p] = sum;
        }
    }
}

}  // namespace lowrank::LOWRANK_ISA
