// The normal equations of rows: gather each row's factors into packed tiles, build their Gram matrix
// (gram.hpp), and lay out as many systems as a register has lanes for one solution (cholesky.hpp).

#pragma once

#include "cholesky.hpp"
#include "gram.hpp"
#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t tile_bytes = 32 * 1024;  // stays in a first-level cache
inline constexpr std::int64_t prefetch_bytes = 32 * 1024;  // of rows to gather next, fetched while others are summed

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
    std::int64_t ahead;                // entries whose columns are fetched before they are gathered
    mutable std::int64_t fetched = 0;  // entries up to here have been
    T* tile;
    V* solution;
    LaneSystems<T> systems;
    T* turned;  // a transposed tile (dual.hpp)
    T* scale;   // of its rows

    TileSpace(std::int64_t k, std::int64_t unknowns, Scratch& scratch) {
        constexpr int W = lanes<T>;
        width = round_up(k, W > block_rows ? W : block_rows);
        stride = width + round_up(side_columns, W);
        tile_rows = tile_bytes / (stride * static_cast<std::int64_t>(sizeof(T)));
        if (tile_rows < 16) tile_rows = 16;
        ahead = prefetch_bytes / (k * static_cast<std::int64_t>(sizeof(T)) + 1) + 1;
        tile = scratch.take<T>(tile_rows * stride);
        systems.size = round_up(unknowns, panel);
        solution = scratch.take<V>(systems.size);
        turned = scratch.take<T>((k + 1) * width);
        scale = scratch.take<T>(k + 1);
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
    for (std::int64_t j = 0; j < k; j += line) __builtin_prefetch(row + j, 0, 2);
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
    const std::int64_t end = ratings.indptr[row + 1], stored = ratings.indptr[ratings.n_rows];
    const std::int32_t* indices = ratings.indices;
    __builtin_memset(gram, 0, (work.width + side_columns) * work.width * sizeof(T));
    TargetSums sums;
    for (std::int64_t start = ratings.indptr[row]; start < end; start += work.tile_rows) {
        const std::int64_t n = end - start < work.tile_rows ? end - start : work.tile_rows;
        for (std::int64_t p = 0; p < n; ++p) {
            const std::int64_t column = indices[start + p];
            T* packed = work.tile + p * work.stride;
            copy_row(other + column * step, packed, k);
            const T wanted = target(start + p, column, packed);
            packed[work.width] = wanted;
            packed[work.width + 1] = 1;
            sums.sum += wanted;
            sums.squares += static_cast<double>(wanted) * wanted;
        }
        const std::int64_t first = start + n > work.fetched ? start + n : work.fetched;
        const std::int64_t last = start + n + work.ahead < stored ? start + n + work.ahead : stored;
        std::int64_t next = first;
        const Tile<T> tile{work.tile, n, work.stride};
        gram_update(tile, work.width, gram, [&](std::int64_t done) {
            for (const std::int64_t until = first + (last - first) * done / work.width; next < until; ++next)
                prefetch_row(other + indices[next] * step, k);
        });
        side_update(tile, work.width, gram);
        work.fetched = next;
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
    for (std::int64_t i = 0; i < size; ++i)
        for (std::int64_t j = i / W * W; j < size; j += W) {
            lanes_of(i * stride + j, v);
            for (int c = 0; c < W && j + c < size; ++c)
                if (j + c >= i / panel * panel) systems.at(i, j + c) = v[c];
        }
    for (int side = 0; side < rhs_columns; ++side)
        for (std::int64_t j = 0; j < size; j += W) {
            lanes_of((first_side + side) * stride + j, v);
            for (std::int64_t c = 0; c < W && j + c < size; ++c) systems.right(j + c)[side] = v[c];
        }
}

}  // namespace lowrank::LOWRANK_ISA
