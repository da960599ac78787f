// The explicit ALS half-sweep: gather each row's factors into packed tiles, build its normal
// equations (gram.hpp), and solve as many rows at once as a register has lanes (cholesky.hpp).

#pragma once

#include "cholesky.hpp"
#include "gram.hpp"
#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t tile_bytes = 32 * 1024;  // stays in a first-level cache
inline constexpr std::int64_t prefetch_distance = 12;  // gathered rows ahead

template <class T>
struct Batch {
    std::int64_t row[lanes<T>];
    T sum[lanes<T>];  // sum of the targets
    double sum_squares[lanes<T>];
    int count = 0;
};

// One thread's scratch memory, in pieces that start on a cache line.
struct Scratch {
    char* next;
    template <class U>
    U* take(std::int64_t n) {
        char* start = next;
        next += round_up(n * static_cast<std::int64_t>(sizeof(U)), 64);
        return reinterpret_cast<U*>(start);
    }
};

// A tile of gathered rows, and the systems solved from their Gram matrices.
template <class T>
struct TileSpace {
    using V = Vec<T, lanes<T>>;
    std::int64_t width;   // k rounded up to whole register blocks
    std::int64_t stride;  // of a tile row: the factors, then the side columns
    std::int64_t tile_rows;
    T* tile;
    V* solution;
    LaneSystems<T> systems;

    TileSpace(std::int64_t k, std::int64_t unknowns, Scratch& scratch) {
        constexpr int W = lanes<T>;
        width = round_up(k, W > block_rows ? W : block_rows);
        stride = width + round_up(side_columns, W);
        tile_rows = tile_bytes / (stride * static_cast<std::int64_t>(sizeof(T)));
        if (tile_rows < 16) tile_rows = 16;
        tile = scratch.take<T>(tile_rows * stride);
        systems.size = round_up(unknowns, factor_rows);
        solution = scratch.take<V>(systems.size);
        systems.inverse_diagonal = scratch.take<V>(systems.size);
        systems.cells = scratch.take<V>(LaneSystems<T>::cell_count(systems.size));
    }
};

template <class T>
struct Workspace : TileSpace<T> {
    std::int64_t gram_size;  // numbers in one row's normal equations
    T* grams;                // one for each lane
    std::size_t bytes;

    Workspace(std::int64_t k, void* memory) : Workspace(k, Scratch{static_cast<char*>(memory)}) {}
    Workspace(std::int64_t k, Scratch scratch) : TileSpace<T>(k, k, scratch) {
        gram_size = (this->width + side_columns) * this->width;
        grams = scratch.take<T>(gram_size * lanes<T>);
        bytes = reinterpret_cast<std::size_t>(scratch.next);  // of a layout that starts at null
    }
};

template <class T>
[[gnu::always_inline]] inline void prefetch_row(const T* row, std::int64_t k) {
    constexpr std::int64_t line = 64 / sizeof(T);
    for (std::int64_t j = 0; j < k; j += line) __builtin_prefetch(row + j);
}

template <class T>
[[gnu::always_inline]] inline void copy_row(const T* from, T* to, std::int64_t k) {
    constexpr int W = lanes<T>;
    std::int64_t j = 0;
    for (; j + W <= k; j += W) store<T, W>(to + j, load<T, W>(from + j));
    for (; j < k; ++j) to[j] = from[j];
}

struct TargetSums {
    double sum = 0, squares = 0;
};

// The Gram matrix and side products of one row's data, from vectors of k factors at a distance of
// `step` in `other`. target(place, column, packed) returns an entry's target, and may scale its factors.
template <class T, class Target>
[[gnu::always_inline]] inline TargetSums accumulate(const Csr<T>& ratings, std::int64_t row, const T* other,
                                                    std::int64_t step, std::int64_t k, const TileSpace<T>& work,
                                                    T* gram, const Target& target) {
    const std::int64_t end = ratings.indptr[row + 1];
    const std::int32_t* indices = ratings.indices;
    __builtin_memset(gram, 0, (work.width + side_columns) * work.width * sizeof(T));
    TargetSums sums;
    for (std::int64_t start = ratings.indptr[row]; start < end; start += work.tile_rows) {
        const std::int64_t n = end - start < work.tile_rows ? end - start : work.tile_rows;
        for (std::int64_t p = 0; p < n; ++p) {
            if (start + p + prefetch_distance < end)
                prefetch_row(other + indices[start + p + prefetch_distance] * step, step);
            const std::int64_t column = indices[start + p];
            T* packed = work.tile + p * work.stride;
            copy_row(other + column * step, packed, k);
            const T wanted = target(start + p, column, packed);
            packed[work.width] = wanted;
            packed[work.width + 1] = 1;
            sums.sum += wanted;
            sums.squares += static_cast<double>(wanted) * wanted;
        }
        gram_update(Tile<T>{work.tile, n, work.stride}, work.width, gram);
    }
    return sums;
}

// From one system per lane, `distance` apart, to one lane per system. A system has its upper triangle,
// then from row `first_side` on its right-hand sides, in rows of `stride`. Idle lanes repeat the first.
template <class T>
inline void interleave_systems(const LaneSystems<T>& systems, const T* first, int count, std::int64_t distance,
                               std::int64_t stride, std::int64_t first_side) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    const std::int64_t size = systems.size;
    const auto lanes_of = [&](std::int64_t offset, V(&v)[W]) {
        for (int l = 0; l < W; ++l) v[l] = load<T, W>(first + (l < count ? l : 0) * distance + offset);
        transpose<T, W>(v);
    };
    V v[W];
    for (std::int64_t i = 0; i < size; ++i) {
        V* row = systems.row(i);
        for (std::int64_t j = i / W * W; j < size; j += W) {
            lanes_of(i * stride + j, v);
            for (std::int64_t c = j < i ? i - j : 0; c < W && j + c < size; ++c) row[j + c] = v[c];
        }
    }
    for (int side = 0; side < rhs_columns; ++side)
        for (std::int64_t j = 0; j < size; j += W) {
            lanes_of((first_side + side) * stride + j, v);
            for (std::int64_t c = 0; c < W && j + c < size; ++c) systems.row(j + c)[size + side] = v[c];
        }
}

// The bias is the last unknown of each system, so it is eliminated by hand: with y = R^-T rhs and
// z = R^-T sums, b = (sum - z.y) / (n + bias_penalty - z.z) and a = R^-1 (y - b z).
template <class T>
inline Vec<T, lanes<T>> solve_bias(const AlsProblem<T>& problem, const Workspace<T>& work,
                                   const Batch<T>& batch, double (&gain)[lanes<T>]) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    V yy{}, zy{}, zz{};
    for (std::int64_t i = 0; i < work.systems.size; ++i) {
        const V y = work.systems.row(i)[work.systems.size];
        const V z = work.systems.row(i)[work.systems.size + 1];
        yy += y * y;
        zy += z * y;
        zz += z * z;
    }
    V bias{};
    for (int l = 0; l < batch.count; ++l) {
        gain[l] = yy[l];
        if (!problem.fit_bias) continue;
        const std::int64_t row = batch.row[l];
        const T n = static_cast<T>(problem.ratings.indptr[row + 1] - problem.ratings.indptr[row]);
        const T numerator = batch.sum[l] - zy[l];
        bias[l] = numerator / (n - zz[l] + problem.bias_penalty[row]);
        gain[l] += static_cast<double>(bias[l]) * numerator;
    }
    return bias;
}

template <class T>
inline void solve_batch(const AlsProblem<T>& problem, const Workspace<T>& work, Batch<T>& batch) {
    using V = Vec<T, lanes<T>>;
    if (batch.count == 0) return;
    interleave_systems(work.systems, work.grams, batch.count, work.gram_size, work.width, work.width);
    V penalty;
    for (int l = 0; l < lanes<T>; ++l) penalty[l] = problem.penalty[batch.row[l < batch.count ? l : 0]];
    // Padding rows have a zero Gram matrix: the penalty alone keeps them solvable.
    for (std::int64_t i = 0; i < work.systems.size; ++i)
        work.systems.row(i)[i] += i < problem.k ? penalty : broadcast<T, lanes<T>>(1);
    factor(work.systems);
    double gain[lanes<T>];
    const V bias = solve_bias(problem, work, batch, gain);
    for (std::int64_t i = 0; i < work.systems.size; ++i) {
        const V* rhs = work.systems.row(i) + work.systems.size;
        work.solution[i] = rhs[0] - bias * rhs[1];
    }
    back_substitute(work.systems, work.solution);
    for (int l = 0; l < batch.count; ++l) {
        T* factors = problem.factors + batch.row[l] * problem.k;
        for (std::int64_t i = 0; i < problem.k; ++i) factors[i] = work.solution[i][l];
        problem.bias[batch.row[l]] = bias[l];
        problem.objective[batch.row[l]] = batch.sum_squares[l] - gain[l];
    }
    batch.count = 0;
}

template <class T>
std::size_t als_workspace(std::int64_t k) {
    return Workspace<T>(k, nullptr).bytes;
}

template <class T>
void als_rows(const AlsProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    const Workspace<T> work(problem.k, memory);
    __builtin_memset(work.tile, 0, work.tile_rows * work.stride * sizeof(T));
    Batch<T> batch;
    for (std::int64_t row = begin; row < end; ++row) {
        if (problem.ratings.indptr[row] == problem.ratings.indptr[row + 1]) {
            __builtin_memset(problem.factors + row * problem.k, 0, problem.k * sizeof(T));
            problem.bias[row] = 0;
            problem.objective[row] = 0;
            continue;
        }
        const auto target = [&](std::int64_t place, std::int64_t column, T*) {
            return static_cast<T>(problem.ratings.value(row, place) - problem.shift) - problem.other_bias[column];
        };
        const TargetSums sums = accumulate(problem.ratings, row, problem.other, problem.k, problem.k, work,
                                           work.grams + batch.count * work.gram_size, target);
        batch.row[batch.count] = row;
        batch.sum[batch.count] = static_cast<T>(sums.sum);
        batch.sum_squares[batch.count++] = sums.squares;
        if (batch.count == lanes<T>) solve_batch(problem, work, batch);
    }
    solve_batch(problem, work, batch);
}

}  // namespace lowrank::LOWRANK_ISA
