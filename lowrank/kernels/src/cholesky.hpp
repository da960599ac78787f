// Cholesky solves of many small systems at once: lane l of every vector belongs to system l, so
// the code below is the scalar algorithm and runs at full vector width whatever the size k.
//
// The upper triangle G = R' R is stored by rows, followed in each row by two right-hand-side
// columns; eliminating them together with the rest is the forward substitution.

#pragma once

#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

// Register block of the factorisation: rows x columns of lane vectors.
inline constexpr int factor_rows = 4;
inline constexpr int factor_cols = LOWRANK_VECTOR_BYTES == 64 ? 4 : 2;
inline constexpr int rhs_columns = 2;

template <class T>
struct LaneSystems {
    using V = Vec<T, lanes<T>>;
    V* cells;
    V* inverse_diagonal;  // size numbers: 1 / R[i][i]
    std::int64_t size;    // a multiple of factor_rows

    // Row i starts at its diagonal; R(i, j) for j >= i, the right-hand sides at j = size, size + 1.
    V* row(std::int64_t i) const { return cells + i * (size + rhs_columns) - i * (i + 1) / 2; }

    static std::int64_t cell_count(std::int64_t size) {
        return size * (size + 1) / 2 + size * rhs_columns;
    }
};

// acc = G[i:i+Rows, j:j+Cols] - sum_{p < i} R[p, i:i+Rows]' R[p, j:j+Cols]
template <class T, int Rows, int Cols, class V>
[[gnu::always_inline]] inline void eliminate(const LaneSystems<T>& s, int i, int j, V (&acc)[Rows][Cols]) {
    for (int p = 0; p < i; ++p) {
        const V* row = s.row(p);
        V b[Cols];
        for (int c = 0; c < Cols; ++c) b[c] = row[j + c];
        for (int r = 0; r < Rows; ++r) {
            const V a = row[i + r];
            for (int c = 0; c < Cols; ++c) acc[r][c] -= a * b[c];
        }
    }
}

// The columns j : j + Cols of the strip of rows starting at i, whose diagonal block is factored.
template <class T, int Cols>
inline void factor_panel(const LaneSystems<T>& s, int i, int j) {
    using V = typename LaneSystems<T>::V;
    V acc[factor_rows][Cols];
    for (int r = 0; r < factor_rows; ++r)
        for (int c = 0; c < Cols; ++c) acc[r][c] = s.row(i + r)[j + c];
    eliminate<T, factor_rows, Cols>(s, i, j, acc);
    for (int r = 0; r < factor_rows; ++r) {
        for (int q = 0; q < r; ++q) {
            const V a = s.row(i + q)[i + r];
            for (int c = 0; c < Cols; ++c) acc[r][c] -= a * acc[q][c];
        }
        for (int c = 0; c < Cols; ++c) {
            acc[r][c] *= s.inverse_diagonal[i + r];
            s.row(i + r)[j + c] = acc[r][c];
        }
    }
}

template <class T>
inline void factor_diagonal(const LaneSystems<T>& s, int i) {
    using V = typename LaneSystems<T>::V;
    V acc[factor_rows][factor_rows];
    for (int r = 0; r < factor_rows; ++r)
        for (int c = 0; c < factor_rows; ++c) acc[r][c] = c >= r ? s.row(i + r)[i + c] : V{};
    eliminate<T, factor_rows, factor_rows>(s, i, i, acc);
    for (int r = 0; r < factor_rows; ++r) {
        for (int q = 0; q < r; ++q)
            for (int c = r; c < factor_rows; ++c) acc[r][c] -= acc[q][r] * acc[q][c];
        const V root = square_root<T>(acc[r][r]);
        const V inverse = T(1) / root;
        s.inverse_diagonal[i + r] = inverse;
        acc[r][r] = root;
        for (int c = r + 1; c < factor_rows; ++c) acc[r][c] *= inverse;
        for (int c = r; c < factor_rows; ++c) s.row(i + r)[i + c] = acc[r][c];
    }
}

// Replaces G by R and the right-hand sides B by R^-T B.
template <class T>
inline void factor(const LaneSystems<T>& s) {
    for (int i = 0; i < s.size; i += factor_rows) {
        factor_diagonal(s, i);
        for (int j = i + factor_rows; j < s.size; j += factor_cols)
            factor_panel<T, factor_cols>(s, i, j);
        factor_panel<T, rhs_columns>(s, i, s.size);
    }
}

// x = R^-1 y, with x and y of `size` lane vectors (x may be y).
template <class T>
inline void back_substitute(const LaneSystems<T>& s, typename LaneSystems<T>::V* x) {
    using V = typename LaneSystems<T>::V;
    for (int i = s.size; i-- > 0;) {
        const V* row = s.row(i);
        V sums[4] = {x[i], V{}, V{}, V{}};
        int j = i + 1;
        for (; j + 4 <= s.size; j += 4)
            for (int c = 0; c < 4; ++c) sums[c] -= row[j + c] * x[j + c];
        for (; j < s.size; ++j) sums[0] -= row[j] * x[j];
        x[i] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * s.inverse_diagonal[i];
    }
}

}  // namespace lowrank::LOWRANK_ISA
