// Posteriors of Gaussian rows: as als.hpp, with a full prior, the covariances of the other side
// added to the Gram matrix, and the covariance of each row (or a draw from it) as a result.
//
// The bias is the last unknown here, not eliminated by hand, since its covariances are wanted.

#pragma once

#include "als.hpp"

namespace lowrank::LOWRANK_ISA {

template <class T>
struct PosteriorWorkspace : TileSpace<T> {
    using V = Vec<T, lanes<T>>;
    std::int64_t k, d;         // factors; unknowns, k + 1
    std::int64_t flat_stride;  // of a row of one lane's system
    std::int64_t flat_size;
    T* gram;
    T* flat;  // one system for each lane, its right-hand side in row `size`, and a row of zeros
    V* line;
    std::size_t bytes;

    PosteriorWorkspace(std::int64_t k, void* memory) : PosteriorWorkspace(k, Scratch{static_cast<char*>(memory)}) {}
    PosteriorWorkspace(std::int64_t k, Scratch scratch) : TileSpace<T>(k, k + 1, scratch), k(k), d(k + 1) {
        flat_stride = round_up(this->systems.size, lanes<T>);
        flat_size = (this->systems.size + rhs_columns) * flat_stride;
        gram = scratch.take<T>((this->width + rhs_columns) * this->width);
        flat = scratch.take<T>(flat_size * lanes<T>);
        line = scratch.take<V>(this->systems.size);
        bytes = reinterpret_cast<std::size_t>(scratch.next);  // of a layout that starts at null
    }
};

// Data, prior and the other side's covariances together, as the system of one lane.
template <class T>
inline void assemble(const PosteriorProblem<T>& problem, std::int64_t row, const PosteriorWorkspace<T>& work,
                     TargetSums& sums, T* flat) {
    const std::int64_t k = work.k, d = work.d, s = work.flat_stride;
    const T weight = problem.weight[row];
    const T* target_row = work.gram + work.width * work.width;
    const T* ones_row = target_row + work.width;
    const T* prior_right = problem.prior_right + row * d;
    T* right = flat + work.systems.size * s;
    __builtin_memset(flat, 0, work.flat_size * sizeof(T));
    for (std::int64_t i = 0; i < k; ++i) {
        for (std::int64_t j = i; j < k; ++j)
            flat[i * s + j] = work.gram[i * work.width + j] + weight * problem.prior[i * d + j];
        flat[i * s + k] = ones_row[i] + weight * problem.prior[i * d + k];
        right[i] = target_row[i] + prior_right[i];
    }
    const std::int64_t n = problem.ratings.indptr[row + 1] - problem.ratings.indptr[row];
    flat[k * s + k] = static_cast<T>(n) + weight * problem.prior[k * d + k];
    right[k] = static_cast<T>(sums.sum) + prior_right[k];
    // Padding rows are systems of their own.
    for (std::int64_t i = d; i < work.systems.size; ++i) flat[i * s + i] = 1;
    if (!problem.covariance) return;
    const T* cell = problem.covariance + row * (d * (d + 1) / 2);
    for (std::int64_t i = 0; i < k; ++i) {
        for (std::int64_t j = i; j < k; ++j) flat[i * s + j] += cell[j - i];
        right[i] -= cell[k - i];
        cell += d - i;
    }
    sums.squares += *cell;
}

// Replaces R by R^-1, from the last row up, with zeros below the diagonal: T_i = (e_i - sum_{p > i} R_ip T_p) / R_ii.
template <class T>
inline void invert_factor(const LaneSystems<T>& s, typename LaneSystems<T>::V* line) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = s.size; i-- > 0;) {
        for (std::int64_t j = i; j < s.size; ++j) line[j] = s.at(i, j);
        for (std::int64_t j = i / panel * panel; j < s.size; j += panel) {
            const V* rows = s.columns(j);
            V acc[panel] = {};
            const std::int64_t last = j + panel;
            for (std::int64_t p = i + 1; p < last; ++p)
                unrolled<panel>([&](auto c) __attribute__((always_inline)) { acc[c] -= line[p] * rows[p * panel + c]; });
            for (int c = 0; c < panel; ++c) s.at(i, j + c) = acc[c] * s.inverse_diagonal[i];
        }
        s.at(i, i) = s.inverse_diagonal[i];
    }
}

// Replaces the upper triangle T, with zeros below it, by that of T T'.
template <class T>
inline void square_inverse(const LaneSystems<T>& s) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = 0; i < s.size; i += panel)
        for (std::int64_t j = i; j < s.size; j += panel) {
            V acc[panel][panel] = {};
            for (std::int64_t p = j; p < s.size; ++p) {
                const V *column = s.columns(p / panel * panel) + p % panel, *left = column + i * panel;
                column += j * panel;
                unrolled<panel>([&](auto r) __attribute__((always_inline)) {
                    unrolled<panel>([&](auto c) __attribute__((always_inline)) {
                        acc[r][c] += left[r * panel] * column[c * panel];
                    });
                });
            }
            V* block = s.columns(j) + i * panel;
            for (int r = 0; r < panel; ++r)
                for (int c = 0; c < panel; ++c) block[r * panel + c] = acc[r][c];
        }
}

template <class T>
inline void store_covariances(const PosteriorProblem<T>& problem, const PosteriorWorkspace<T>& work,
                              std::int64_t first, int count) {
    const std::int64_t d = work.d;
    const T scale = static_cast<T>(problem.noise_variance);
    for (int l = 0; l < count; ++l) {
        T* cell = problem.covariance + (first + l) * (d * (d + 1) / 2);
        for (std::int64_t i = 0; i < d; ++i) {
            for (std::int64_t j = i; j < d; ++j) *cell++ = scale * work.systems.at(i, j)[l];
        }
    }
}

// Solves the systems of the rows first : first + count.
template <class T>
inline void solve_posteriors(const PosteriorProblem<T>& problem, const PosteriorWorkspace<T>& work,
                             std::int64_t first, int count, const double* squares) {
    using V = Vec<T, lanes<T>>;
    const LaneSystems<T>& s = work.systems;
    interleave_systems(s, work.flat, count, work.flat_size, work.flat_stride, s.size);
    factor(s);
    V gain{};
    double log_det[lanes<T>] = {};
    for (std::int64_t i = 0; i < s.size; ++i) {
        const V y = s.right(i)[0];
        gain += y * y;
        work.solution[i] = y;
        for (int l = 0; l < count; ++l) log_det[l] -= 2 * __builtin_log(static_cast<double>(s.inverse_diagonal[i][l]));
    }
    if (problem.draws)
        for (int l = 0; l < count; ++l)
            for (std::int64_t i = 0; i < work.d; ++i)
                work.solution[i][l] += problem.draws[(first + l) * work.d + i];
    back_substitute(s, work.solution);
    for (int l = 0; l < count; ++l) {
        T* vector = problem.vectors + (first + l) * work.d;
        for (std::int64_t i = 0; i < work.d; ++i) vector[i] = work.solution[i][l];
        problem.objective[first + l] = squares[l] - gain[l];
        problem.log_det[first + l] = log_det[l];
    }
    if (!problem.covariance || !problem.invert) return;
    invert_factor(s, work.line);
    square_inverse(s);
    store_covariances(problem, work, first, count);
}

template <class T>
std::size_t posterior_workspace(std::int64_t k) {
    return PosteriorWorkspace<T>(k, nullptr).bytes;
}

template <class T>
void posterior_rows(const PosteriorProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const PosteriorWorkspace<T> work(problem.k, memory);
    work.prepare(work.k, nullptr);
    for (std::int64_t first = begin; first < end; first += lanes<T>) {
        const int count = static_cast<int>(end - first < lanes<T> ? end - first : lanes<T>);
        double squares[lanes<T>];
        for (int l = 0; l < count; ++l) {
            const auto target = [&](std::int64_t place, std::int64_t column) {
                return static_cast<T>(problem.ratings.value(first + l, place) - problem.shift) -
                       problem.other[column * work.d + work.k];
            };
            TargetSums sums =
                accumulate<T, false>(problem.ratings, first + l, problem.other, work.d, work.k, work, work.gram, target);
            assemble(problem, first + l, work, sums, work.flat + l * work.flat_size);
            squares[l] = sums.squares;
        }
        solve_posteriors(problem, work, first, count, squares);
    }
}

}  // namespace lowrank::LOWRANK_ISA
