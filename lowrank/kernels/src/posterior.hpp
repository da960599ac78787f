// Posteriors of Gaussian rows: as als.hpp, with a full prior, the covariances of the other side
// added to the Gram matrix, and the covariance of each row (or a draw from it) as a result.
//
// The bias is the last unknown here, not eliminated by hand, since its covariances are wanted.

#pragma once

#include "als.hpp"

namespace lowrank::LOWRANK_ISA {

// Layout of one thread's scratch memory.
template <class T>
struct PosteriorWorkspace {
    using V = Vec<T, lanes<T>>;
    std::int64_t k, d;         // factors; unknowns, k + 1
    std::int64_t width;        // k rounded up to whole register blocks
    std::int64_t stride;       // of a tile row: the factors, then the side columns
    std::int64_t tile_rows;
    std::int64_t flat_stride;  // of a row of one lane's system
    std::int64_t flat_size;
    T* tile;
    T* gram;
    T* flat;                   // one system for each lane, its right-hand side in row `size`
    V* solution;
    V* line;
    LaneSystems<T> systems;
    std::size_t bytes;

    PosteriorWorkspace(std::int64_t k, void* memory) : k(k), d(k + 1) {
        constexpr int W = lanes<T>;
        width = round_up(k, W > block_rows ? W : block_rows);
        stride = width + round_up(side_columns, W);
        tile_rows = tile_bytes / (stride * static_cast<std::int64_t>(sizeof(T)));
        if (tile_rows < 16) tile_rows = 16;
        systems.size = round_up(d, factor_rows);
        flat_stride = round_up(systems.size, W);
        flat_size = (systems.size + 1) * flat_stride;
        char* next = static_cast<char*>(memory);
        const auto take = [&next](std::int64_t n, std::size_t size) {
            char* start = next;
            next += round_up(n * static_cast<std::int64_t>(size), 64);
            return start;
        };
        tile = reinterpret_cast<T*>(take(tile_rows * stride, sizeof(T)));
        gram = reinterpret_cast<T*>(take((width + side_columns) * width, sizeof(T)));
        flat = reinterpret_cast<T*>(take(flat_size * W, sizeof(T)));
        solution = reinterpret_cast<V*>(take(systems.size, sizeof(V)));
        line = reinterpret_cast<V*>(take(systems.size, sizeof(V)));
        systems.inverse_diagonal = reinterpret_cast<V*>(take(systems.size, sizeof(V)));
        systems.cells = reinterpret_cast<V*>(take(LaneSystems<T>::cell_count(systems.size), sizeof(V)));
        bytes = static_cast<std::size_t>(next - static_cast<char*>(memory));
    }
};

struct TargetSums {
    double sum = 0, squares = 0;
};

// The data's part of one row's normal equations, into work.gram.
template <class T>
inline TargetSums accumulate_row(const PosteriorProblem<T>& problem, std::int64_t row,
                                 const PosteriorWorkspace<T>& work) {
    const std::int64_t end = problem.ratings.indptr[row + 1], k = work.k, d = work.d;
    const std::int32_t* indices = problem.ratings.indices;
    __builtin_memset(work.gram, 0, (work.width + side_columns) * work.width * sizeof(T));
    TargetSums sums;
    for (std::int64_t start = problem.ratings.indptr[row]; start < end; start += work.tile_rows) {
        const std::int64_t n = end - start < work.tile_rows ? end - start : work.tile_rows;
        for (std::int64_t p = 0; p < n; ++p) {
            if (start + p + prefetch_distance < end)
                prefetch_row(problem.other + indices[start + p + prefetch_distance] * d, d);
            const T* vector = problem.other + indices[start + p] * d;
            T* packed = work.tile + p * work.stride;
            copy_row(vector, packed, k);
            const T target = static_cast<T>(problem.ratings.data[start + p] - problem.shift) - vector[k];
            packed[work.width] = target;
            packed[work.width + 1] = 1;
            sums.sum += target;
            sums.squares += static_cast<double>(target) * target;
        }
        gram_update(Tile<T>{work.tile, n, work.stride}, work.width, work.gram);
    }
    return sums;
}

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

// From one system per lane to one lane per system. Idle lanes repeat the first system.
template <class T>
inline void interleave_flat(const PosteriorWorkspace<T>& work, int count) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    const std::int64_t size = work.systems.size;
    const auto lanes_of = [&](std::int64_t offset, V(&v)[W]) {
        for (int l = 0; l < W; ++l) v[l] = load<T, W>(work.flat + (l < count ? l : 0) * work.flat_size + offset);
        transpose<T, W>(v);
    };
    V v[W];
    for (std::int64_t i = 0; i < size; ++i) {
        V* row = work.systems.row(i);
        for (std::int64_t j = i / W * W; j < size; j += W) {
            lanes_of(i * work.flat_stride + j, v);
            for (std::int64_t c = j < i ? i - j : 0; c < W && j + c < size; ++c) row[j + c] = v[c];
        }
    }
    for (std::int64_t j = 0; j < size; j += W) {
        lanes_of(size * work.flat_stride + j, v);
        for (std::int64_t c = 0; c < W && j + c < size; ++c) {
            work.systems.row(j + c)[size] = v[c];
            work.systems.row(j + c)[size + 1] = V{};
        }
    }
}

// Replaces R by R^-1, from the last row up: T_i = (e_i - sum_{p > i} R_ip T_p) / R_ii.
template <class T>
inline void invert_factor(const LaneSystems<T>& s, typename LaneSystems<T>::V* line) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = s.size; i-- > 0;) {
        V* row = s.row(i);
        for (std::int64_t j = i; j < s.size; ++j) line[j] = V{};
        for (std::int64_t p = i + 1; p < s.size; ++p) {
            const V r = row[p];
            const V* below = s.row(p);
            for (std::int64_t j = p; j < s.size; ++j) line[j] += r * below[j];
        }
        row[i] = s.inverse_diagonal[i];
        for (std::int64_t j = i + 1; j < s.size; ++j) row[j] = -line[j] * s.inverse_diagonal[i];
    }
}

// Replaces the upper triangle T by that of T T'.
template <class T>
inline void square_inverse(const LaneSystems<T>& s) {
    using V = typename LaneSystems<T>::V;
    for (std::int64_t i = 0; i < s.size; ++i) {
        V* row = s.row(i);
        for (std::int64_t j = i; j < s.size; ++j) {
            const V* other = s.row(j);
            V sums[4] = {};
            std::int64_t p = j;
            for (; p + 4 <= s.size; p += 4)
                for (int c = 0; c < 4; ++c) sums[c] += row[p + c] * other[p + c];
            for (; p < s.size; ++p) sums[0] += row[p] * other[p];
            row[j] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        }
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
            const auto* row = work.systems.row(i);
            for (std::int64_t j = i; j < d; ++j) *cell++ = scale * row[j][l];
        }
    }
}

// Solves the systems of the rows first : first + count.
template <class T>
inline void solve_posteriors(const PosteriorProblem<T>& problem, const PosteriorWorkspace<T>& work,
                             std::int64_t first, int count, const double* squares) {
    using V = Vec<T, lanes<T>>;
    const LaneSystems<T>& s = work.systems;
    interleave_flat(work, count);
    factor(s);
    V gain{};
    double log_det[lanes<T>] = {};
    for (std::int64_t i = 0; i < s.size; ++i) {
        const V y = s.row(i)[s.size];
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
    if (!problem.covariance) return;
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
    __builtin_memset(work.tile, 0, work.tile_rows * work.stride * sizeof(T));
    for (std::int64_t first = begin; first < end; first += lanes<T>) {
        const int count = static_cast<int>(end - first < lanes<T> ? end - first : lanes<T>);
        double squares[lanes<T>];
        for (int l = 0; l < count; ++l) {
            TargetSums sums = accumulate_row(problem, first + l, work);
            assemble(problem, first + l, work, sums, work.flat + l * work.flat_size);
            squares[l] = sums.squares;
        }
        solve_posteriors(problem, work, first, count, squares);
    }
}

}  // namespace lowrank::LOWRANK_ISA
