// Non-negative least squares of a batch of rows, one in each lane:
//
//   minimise  x'A x - 2 b'x  over x >= 0
//
// With the gradient y = A x - b, each unknown of the minimum is free (x_i > 0 and y_i = 0) or at its bound (x_i = 0 and
// y_i >= 0). Block principal pivoting solves for the free unknowns by a Cholesky factorisation, moves those with x_i < 0
// to the bound and those with y_i < 0 away from it, and starts again. Rows whose number of moves does not fall for
// `patience` rounds move only their last one, which ends after finitely many rounds (Kim & Park 2011, section 4).
// Singular systems have no such solution: coordinate descent lowers their objective from the previous factors.

#pragma once

#include "normal.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr int patience = 3;
inline constexpr int most_passes = 1000;  // of coordinate descent

template <class T>
inline constexpr T epsilon = sizeof(T) == 4 ? T(__FLT_EPSILON__) : T(__DBL_EPSILON__);

// Entry (i, j) of a symmetric matrix, of which the upper triangle is stored.
template <class T>
inline Vec<T, lanes<T>> cell(const LaneSystems<T>& s, std::int64_t i, std::int64_t j) {
    return i < j ? s.at(i, j) : s.at(j, i);
}

// `to` becomes the system of the free unknowns; the others get the equation x_i = 0.
template <class T>
inline void keep_free(const LaneSystems<T>& from, const Vec<T, lanes<T>>* free, const LaneSystems<T>& to) {
    for (std::int64_t j = 0; j < from.size; ++j) {
        for (std::int64_t i = 0; i < j; ++i) to.at(i, j) = from.at(i, j) * free[i] * free[j];
        to.at(j, j) = free[j] != 0 ? from.at(j, j) : broadcast<T, lanes<T>>(1);
        to.right(j)[0] = from.right(j)[0] * free[j];
        to.right(j)[1] = Vec<T, lanes<T>>{};
    }
}

// y = A x - b
template <class T>
inline void gradient(const LaneSystems<T>& s, const Vec<T, lanes<T>>* x, Vec<T, lanes<T>>* y) {
    constexpr int W = lanes<T>;
    for (std::int64_t i = 0; i < s.size; ++i) y[i] = -s.right(i)[0];
    for (std::int64_t j = 0; j < s.size; ++j) {
        Vec<T, W> sum = y[j];
        for (std::int64_t i = 0; i < j; ++i) {
            const Vec<T, W> a = s.at(i, j);
            y[i] = add_product<T, W>(y[i], a, x[j]);
            sum = add_product<T, W>(sum, a, x[i]);
        }
        y[j] = add_product<T, W>(sum, s.at(j, j), x[j]);
    }
}

// Marks the unknowns that must move by 1 in `wrong`; returns their number. A gradient within its rounding error,
// which the norms of the columns bound, is not negative.
template <class T>
inline Vec<T, lanes<T>> mark_wrong(const Workspace<T>& work, std::int64_t k) {
    using V = Vec<T, lanes<T>>;
    const LaneSystems<T>& s = work.systems;
    const V one = broadcast<T, lanes<T>>(1), zero{};
    V size{}, count{};
    for (std::int64_t i = 0; i < k; ++i) {
        const V x = work.solution[i];
        size += square_root<T>(s.at(i, i)) * (x < 0 ? -x : x);
    }
    for (std::int64_t i = 0; i < k; ++i) {
        const V b = s.right(i)[0];
        const V slack = 32 * epsilon<T> * (square_root<T>(s.at(i, i)) * size + (b < 0 ? -b : b));
        const V sign = work.free[i] != 0 ? work.solution[i] : work.line[i] + slack;
        work.wrong[i] = sign < 0 ? one : zero;
        count += work.wrong[i];
    }
    return count;
}

// One unknown at a time, with the others fixed, in the lanes that `active` marks by 1.
template <class T>
inline void descend(const LaneSystems<T>& s, std::int64_t k, int count, Vec<T, lanes<T>> active,
                    Vec<T, lanes<T>>* x, Vec<T, lanes<T>>* y) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    gradient(s, x, y);
    bool is_moving = true;
    for (int pass = 0; is_moving && pass < most_passes; ++pass) {
        V size{}, change{};
        for (std::int64_t i = 0; i < k; ++i) {
            const V a = s.at(i, i);
            V to = a > 0 ? x[i] - y[i] / a : x[i];
            to = to > 0 ? to : V{};
            const V step = active != 0 ? to - x[i] : V{};
            x[i] += step;
            for (std::int64_t j = 0; j < k; ++j) y[j] = add_product<T, W>(y[j], cell(s, i, j), step);
            size += a * x[i] * x[i];
            change += a * step * step;
        }
        is_moving = false;
        for (int l = 0; l < count; ++l) {
            if (!(change[l] > epsilon<T> * epsilon<T> * size[l])) active[l] = 0;
            is_moving = is_moving || active[l] != 0;
        }
    }
    gradient(s, x, y);
}

// Solves the first k unknowns of work.systems, whose lanes are `count` rows with previous factors: the minimum in
// work.solution, its gradient in work.line.
template <class T>
inline void solve_nonnegative(const Workspace<T>& work, std::int64_t k, const std::int64_t* rows, int count,
                              const T* factors) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    const LaneSystems<T>& s = work.systems;
    LaneSystems<T> reduced = work.reduced;
    reduced.size = s.size;
    for (std::int64_t i = 0; i < s.size; ++i) {
        work.free[i] = broadcast<T, W>(i >= k);
        for (int l = 0; i < k && l < count; ++l) work.free[i][l] = factors[rows[l] * k + i] > 0;
    }
    V fewest = broadcast<T, W>(static_cast<T>(k + 1)), running{}, failed{}, single{};
    int rounds_left[W];
    for (int l = 0; l < W; ++l) rounds_left[l] = patience;
    for (int l = 0; l < count; ++l) running[l] = 1;
    for (std::int64_t round = 0; round < 5 * k + 20; ++round) {
        keep_free(s, work.free, reduced);
        factor(reduced);
        for (std::int64_t i = 0; i < s.size; ++i) work.solution[i] = reduced.right(i)[0];
        back_substitute(reduced, work.solution);
        gradient(s, work.solution, work.line);
        const V moves = mark_wrong(work, k);
        V difference{};
        for (std::int64_t i = 0; i < k; ++i) difference += work.solution[i] - work.solution[i];
        bool is_running = false;
        for (int l = 0; l < count; ++l) {
            if (running[l] == 0) continue;
            const bool is_finite = difference[l] == 0;
            if (!is_finite) failed[l] = 1;
            if (!is_finite || moves[l] == 0) {
                running[l] = 0;
                continue;
            }
            is_running = true;
            if (moves[l] < fewest[l]) {
                fewest[l] = moves[l];
                rounds_left[l] = patience;
            } else {
                --rounds_left[l];
            }
            single[l] = rounds_left[l] < 0;
        }
        if (!is_running) break;
        V may_move = running;
        for (std::int64_t i = k; i-- > 0;) {
            const V move = work.wrong[i] * may_move;
            work.free[i] = move != 0 ? 1 - work.free[i] : work.free[i];
            may_move -= single * move;
        }
    }
    bool has_failed = false;
    for (int l = 0; l < count; ++l) {
        if (running[l] != 0) failed[l] = 1;
        if (failed[l] == 0) continue;
        has_failed = true;
        for (std::int64_t i = 0; i < s.size; ++i) {
            const T previous = i < k ? factors[rows[l] * k + i] : 0;
            work.solution[i][l] = previous > 0 ? previous : 0;
        }
    }
    if (has_failed) descend(s, k, count, failed, work.solution, work.line);
}

// Writes the solution of one lane; returns b'x - y'x, by which the minimum is below that at zero.
template <class T>
inline double store_nonnegative(const Workspace<T>& work, std::int64_t k, int lane, T* factors) {
    double gain = 0;
    for (std::int64_t i = 0; i < k; ++i) {
        const T x = work.solution[i][lane];
        factors[i] = x > 0 ? x : 0;
        gain += static_cast<double>(factors[i]) * (work.systems.right(i)[0][lane] - work.line[i][lane]);
    }
    return gain;
}

}  // namespace lowrank::LOWRANK_ISA
