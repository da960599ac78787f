// Rows with fewer entries than factors, solved in one unknown per entry. With a diagonal penalty D, the
// factors of the entries as rows of B, and their targets t, the least squares problem has the solution
//
//   a = (D + B'B)^-1 B't = D^-1 B'y   where   (I + B D^-1 B') y = t
//
// and the minimum t'y; y is the residual of the targets.

#pragma once

#include "normal.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t dual_step = 8;  // sizes of systems are rounded up to it, to solve rows together

// Unknowns of the dual system of a row with n entries, or 0 if the normal equations in k unknowns are faster. They are
// from n = 2/3 k on with AVX-512, whose registers solve more systems at once, otherwise from 3/4 k on.
inline std::int64_t dual_size(std::int64_t n, std::int64_t k) {
    const std::int64_t size = round_up(n, dual_step);
    return 12 * size <= (many_registers ? 8 : 9) * k ? size : 0;
}

// The first n rows of `tile` times `scale`, transposed: turned[j * width + p] = scale[j] tile[p][j] for p < n, then
// zeros. Both are read and written in whole vectors.
template <class T>
inline void turn_tile(const Workspace<T>& work, std::int64_t n, std::int64_t k, std::int64_t width) {
    constexpr int W = lanes<T>;
    for (std::int64_t p = 0; p < width; p += W)
        for (std::int64_t j = 0; j < k; j += W) {
            Vec<T, W> v[W];
            for (int r = 0; r < W; ++r)
                v[r] = p + r < n ? load<T, W>(work.tile + (p + r) * work.width + j) : Vec<T, W>{};
            transpose<T, W>(v);
            for (int r = 0; r < W && j + r < k; ++r)
                store<T, W>(work.turned + (j + r) * width + p, v[r] * broadcast<T, W>(work.scale[j + r]));
        }
}

// The upper triangle of B D^-1 B' in `gram`, in rows of `width` numbers, and behind it the targets in a row and the
// roots of the weights in the next.
// work.scale has D^-1/2 of the factors, and of the bias if there is one. `equation` is as for `accumulate`,
// and `ahead` is what the next row needs. The sums of gathered factors are left where the turned tile follows.
template <bool Weighted, class T, class EquationOf>
inline void dual_system(const Csr<T>& entries, std::int64_t row, const T* other, const Workspace<T>& work,
                        std::int64_t k, bool with_bias, std::int64_t width, T* gram,
                        const EquationOf& equation, const Ahead<T>& ahead) {
    const std::int64_t begin = entries.indptr[row], n = entries.indptr[row + 1] - begin;
    T *right = gram + width * width, *roots = right + width;
    __builtin_memset(gram, 0, (width + rhs_columns) * width * sizeof(T));
    for (std::int64_t p = 0; p < n; ++p) {
        const Equation<T> entry = equation(begin + p, entries.indices[begin + p]);
        right[p] = entry.target;
        roots[p] = entry.root;
    }
    gather<T, Weighted>({other, k, entries.indices + begin, right, roots, n, work.tile, work.turned, work.width}, k);
    turn_tile(work, n, k, width);
    for (std::int64_t p = 0; with_bias && p < width; ++p) work.turned[k * width + p] = work.scale[k] * roots[p];
    gram_update(Tile<T>{work.turned, k + with_bias, width}, width, gram, gram, ahead);
}

// Solves the systems of a batch, and writes y of each lane to work.solution.
template <class T>
inline void solve_dual(const Workspace<T>& work, int count, std::int64_t size, std::int64_t width) {
    LaneSystems<T> systems = work.systems;
    systems.size = size;
    interleave_systems(systems, work.grams, count, work.gram_size, width, width);
    for (std::int64_t i = 0; i < size; ++i) systems.at(i, i) += broadcast<T, lanes<T>>(1);
    factor(systems);
    for (std::int64_t i = 0; i < size; ++i) work.solution[i] = systems.right(i)[0];
    back_substitute(systems, work.solution);
}

// D^-1 B'y of one lane. Returns the last number of B'y, for a bias.
template <class T>
inline double dual_factors(const Csr<T>& entries, std::int64_t row, const T* other, const Workspace<T>& work,
                           std::int64_t k, int lane, const T* roots, T* factors) {
    const std::int64_t begin = entries.indptr[row], n = entries.indptr[row + 1] - begin;
    T* sums = work.turned;
    __builtin_memset(sums, 0, rhs_columns * work.width * sizeof(T));
    double total = 0;
    for (std::int64_t p = 0; p < n; ++p) {
        work.targets[p] = work.solution[p][lane] * roots[p];
        total += work.targets[p];
    }
    gather<T, false>({other, k, entries.indices + begin, work.targets, nullptr, n, work.tile, sums, work.width}, k);
    for (std::int64_t j = 0; j < k; ++j) factors[j] = work.scale[j] * work.scale[j] * sums[j];
    return total;
}

// Solves the rows begin:end that have few entries: scale(row) writes work.scale, equations(row) returns what
// `accumulate` calls, and finish(row, t'y, last number of B'y) takes the minimum and what a bias needs.
template <bool Weighted, class T, class Scale, class Equations, class Finish>
inline void dual_rows(const Csr<T>& entries, const T* other, T* factors, const Workspace<T>& work, std::int64_t k,
                      bool with_bias, std::int64_t begin, std::int64_t end, const Scale& scale,
                      const Equations& equations, const Finish& finish) {
    constexpr int W = lanes<T>;
    constexpr std::int64_t step = W > block_rows ? W : block_rows;
    for (std::int64_t size = dual_step; dual_size(size, k); size += dual_step) {
        const std::int64_t width = round_up(size, step);
        std::int64_t rows[W], ready = -1;  // a row whose columns have been fetched
        int count = 0;
        for (std::int64_t row = begin; row <= end; ++row) {
            const std::int64_t n = row < end ? entries.indptr[row + 1] - entries.indptr[row] : 0;
            if (row < end && (n == 0 || dual_size(n, k) != size)) continue;
            const Ahead<T> ahead{other, k, k, entries.indices + entries.indptr[row], n};
            if (ready >= 0) {
                scale(ready);
                dual_system<Weighted>(entries, ready, other, work, k, with_bias, width,
                                      work.grams + count * work.gram_size, equations(ready), ahead);
                rows[count++] = ready;
            }
            ready = row;
            if (count < W && (row < end || count == 0)) continue;
            solve_dual(work, count, size, width);
            for (int lane = 0; lane < count; ++lane) {
                const std::int64_t solved = rows[lane], length = entries.indptr[solved + 1] - entries.indptr[solved];
                const T* targets = work.grams + lane * work.gram_size + width * width;
                double minimum = 0;
                for (std::int64_t p = 0; p < length; ++p)
                    minimum += static_cast<double>(work.solution[p][lane]) * targets[p];
                scale(solved);
                finish(solved, minimum,
                       dual_factors(entries, solved, other, work, k, lane, targets + width, factors + solved * k));
            }
            count = 0;
        }
    }
}

}  // namespace lowrank::LOWRANK_ISA
