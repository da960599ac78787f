// Cholesky solves of many small systems at once. Lane l of every vector belongs to system l, so that
// the scalar algorithm below runs at full vector width for any size k.
//
// The upper triangle G = R' R is stored in panels of four columns, one after the other, followed by
// two right-hand sides. Eliminating these together with G is the forward substitution.

#pragma once

#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr int panel = 4;  // columns of a panel, and rows that are factored together
inline constexpr int factor_cols = many_registers ? 4 : 2;
inline constexpr int rhs_columns = 2;

template <class T>
struct LaneSystems {
    using V = Vec<T, lanes<T>>;
    V* cells;
    V* inverse_diagonal;  // size numbers: 1 / R[i][i]
    std::int64_t size;    // a multiple of `panel`

    // The columns j : j + panel, as rows 0 to j + panel of `panel` numbers; those below the diagonal are not used.
    V* columns(std::int64_t j) const { return cells + j * (j + panel) / 2; }
    V& at(std::int64_t i, std::int64_t j) const { return columns(j / panel * panel)[i * panel + j % panel]; }
    // The right-hand sides of row i.
    V* right(std::int64_t i) const { return columns(size) + i * rhs_columns; }

    static std::int64_t cell_count(std::int64_t size) { return size * (size + panel) / 2 + size * rhs_columns; }
};

// acc -= left[0 : n]' right[0 : n], for `panel` columns on the left, in rows of `panel` and of `stride`; if Upper,
// from the diagonal on.
template <bool Upper, class T, int Cols, class V = Vec<T, lanes<T>>>
[[gnu::always_inline]] inline void eliminate(const V* left, const V* right, std::int64_t stride, std::int64_t n,
                                             V (&acc)[panel][Cols]) {
    for (std::int64_t p = 0; p < n; ++p, left += panel, right += stride) {
        V b[Cols];
        unrolled<Cols>([&](auto c) __attribute__((always_inline)) { b[c] = right[c]; });
        unrolled<panel>([&](auto r) __attribute__((always_inline)) {
            const V a = in_register(left[r]);
            unrolled<Cols>([&](auto c) __attribute__((always_inline)) {
                if constexpr (!Upper || c >= r) acc[r][c] = subtract_product<T, lanes<T>>(acc[r][c], a, b[c]);
            });
        });
    }
}

// `Cols` columns, in rows of `stride`, of the strip of rows i : i + panel, whose diagonal block is factored.
template <int Cols, class T, class V>
inline void factor_strip(const LaneSystems<T>& s, std::int64_t i, V* right, std::int64_t stride) {
    const V* left = s.columns(i);
    V* strip = right + i * stride;
    V acc[panel][Cols];
    unrolled<panel, Cols>([&](auto r, auto c) __attribute__((always_inline)) { acc[r][c] = strip[r * stride + c]; });
    eliminate<false, T>(left, right, stride, i, acc);
    unrolled<panel, Cols>([&](auto r, auto c) __attribute__((always_inline)) {
        for (int q = 0; q < r; ++q)
            acc[r][c] = subtract_product<T, lanes<T>>(acc[r][c], left[(i + q) * panel + r], acc[q][c]);
        strip[r * stride + c] = acc[r][c] *= s.inverse_diagonal[i + r];
    });
}

template <class T>
inline void factor_diagonal(const LaneSystems<T>& s, std::int64_t i) {
    using V = typename LaneSystems<T>::V;
    V* block = s.columns(i) + i * panel;
    V acc[panel][panel];
    unrolled<panel, panel>([&](auto r, auto c) __attribute__((always_inline)) {
        if constexpr (c >= r) acc[r][c] = block[r * panel + c];
    });
    eliminate<true, T>(s.columns(i), s.columns(i), panel, i, acc);
    unrolled<panel>([&](auto r) __attribute__((always_inline)) {
        for (int q = 0; q < r; ++q)
            for (int c = r; c < panel; ++c) acc[r][c] = subtract_product<T, lanes<T>>(acc[r][c], acc[q][r], acc[q][c]);
        const V root = square_root<T>(acc[r][r]);
        const V inverse = T(1) / root;
        s.inverse_diagonal[i + r] = inverse;
        acc[r][r] = root;
        for (int c = r + 1; c < panel; ++c) acc[r][c] *= inverse;
        for (int c = r; c < panel; ++c) block[r * panel + c] = acc[r][c];
    });
}

// Replaces G by R and the right-hand sides B by R^-T B.
template <class T>
inline void factor(const LaneSystems<T>& s) {
    for (std::int64_t i = 0; i < s.size; i += panel) {
        factor_diagonal(s, i);
        for (std::int64_t j = i + panel; j < s.size; j += panel)
            for (int c = 0; c < panel; c += factor_cols) factor_strip<factor_cols>(s, i, s.columns(j) + c, panel);
        factor_strip<rhs_columns>(s, i, s.right(0), rhs_columns);
    }
}

// x = R^-1 y, with x and y of `size` lane vectors (x may be y).
template <class T>
inline void back_substitute(const LaneSystems<T>& s, typename LaneSystems<T>::V* x) {
    for (std::int64_t j = s.size; (j -= panel) >= 0;) {
        const auto* rows = s.columns(j);
        for (int c = panel; c-- > 0;) {
            for (int q = c + 1; q < panel; ++q)
                x[j + c] = subtract_product<T, lanes<T>>(x[j + c], rows[(j + c) * panel + q], x[j + q]);
            x[j + c] *= s.inverse_diagonal[j + c];
        }
        for (std::int64_t p = 0; p < j; ++p)
            for (int c = 0; c < panel; ++c) x[p] = subtract_product<T, lanes<T>>(x[p], rows[p * panel + c], x[j + c]);
    }
}

}  // namespace lowrank::LOWRANK_ISA
