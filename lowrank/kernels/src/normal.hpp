// The normal equations of rows: gather the factors of each row into packed tiles, compute their Gram matrix (gram.hpp),
// and transpose as many systems as a register has lanes for one solution (cholesky.hpp).

#pragma once

#include "cholesky.hpp"
#include "gram.hpp"
#include "kernels.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr std::int64_t tile_bytes = 28 * 1024;  // fits in a first-level cache, with a part of the Gram matrix
inline constexpr std::int64_t prefetch_bytes = 32 * 1024;  // of the rows to gather next, prefetched during sums

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

// A tile of gathered rows, the normal equations of one row for each lane, and the transposed systems, of k or k + 1
// unknowns.
template <class T>
struct Workspace {
    using V = Vec<T, lanes<T>>;
    std::int64_t width;                // k rounded up to whole register blocks
    std::int64_t tile_rows, room;      // rows of a tile that stays in the cache, and of any
    std::int64_t ahead;                // entries whose columns are fetched before they are gathered
    mutable std::int64_t fetched = 0;  // entries up to here have been
    std::int64_t gram_size;            // numbers in one row's normal equations
    T* tile;
    T* targets;  // of the rows of the tile
    T* roots;    // of their weights
    T* start;    // width x width: what each row's Gram matrix starts from
    T* turned;   // a transposed tile (dual.hpp)
    T* scale;    // of its rows
    T* grams;
    V* solution;
    V* line;   // of the inverse (posterior.hpp), or the gradient (nonnegative.hpp)
    V* free;   // which unknowns are not at zero (nonnegative.hpp)
    V* wrong;  // and which have the wrong sign
    LaneSystems<T> systems, reduced;
    std::size_t bytes;

    Workspace(std::int64_t k, void* memory, std::int64_t more = 0) {
        constexpr int W = lanes<T>;
        Scratch scratch{static_cast<char*>(memory)};
        width = round_up(k, W > block_rows ? W : block_rows);
        tile_rows = tile_bytes / (width * static_cast<std::int64_t>(sizeof(T)));
        if (tile_rows < 16) tile_rows = 16;
        room = tile_rows < k ? k : tile_rows;
        ahead = prefetch_bytes / (k * static_cast<std::int64_t>(sizeof(T)) + 1) + 1;
        gram_size = (width + rhs_columns) * width;
        const std::int64_t most = round_up(k + 1, panel);
        systems.size = round_up(k + more, panel);
        tile = scratch.take<T>(room * width);
        targets = scratch.take<T>(room + W);
        roots = scratch.take<T>(room + W);
        start = scratch.take<T>(width * width);
        turned = scratch.take<T>((k + 1) * width);
        scale = scratch.take<T>(k + 1);
        solution = scratch.take<V>(most);
        line = scratch.take<V>(most);
        free = scratch.take<V>(most);
        wrong = scratch.take<V>(most);
        systems.inverse_diagonal = scratch.take<V>(most);
        systems.cells = scratch.take<V>(LaneSystems<T>::cell_count(most));
        grams = scratch.take<T>(gram_size * W);
        reduced.inverse_diagonal = scratch.take<V>(most);
        reduced.cells = scratch.take<V>(LaneSystems<T>::cell_count(most));
        bytes = reinterpret_cast<std::size_t>(scratch.next);  // of a layout that starts at null
    }

    // Clears the tile; Gram matrices start from `gram`, of size k, or from zeros. Ones keep the padding solvable.
    void prepare(std::int64_t k, const T* gram) const {
        __builtin_memset(tile, 0, room * width * sizeof(T));
        for (std::int64_t i = 0; i < width; ++i)
            for (std::int64_t j = 0; j < width; ++j)
                start[i * width + j] = i < k && j < k && gram ? gram[i * k + j] : i >= k && i == j;
    }
};

template <class T>
[[gnu::always_inline]] inline void copy_row(const T* from, T* to, std::int64_t k, T factor) {
    constexpr int W = lanes<T>;
    std::int64_t j = 0;
    for (; j + W <= k; j += W) store<T, W>(to + j, load<T, W>(from + j) * broadcast<T, W>(factor));
    for (; j < k; ++j) to[j] = from[j] * factor;
}

// The equation root (m . a + b) = target of an entry, with the root of its weight.
template <class T>
struct Equation {
    T target, root;
};

struct TargetSums {
    double sum = 0, squares = 0, weight = 0;

    // Adds n targets, in the lanes of a register; there is room for a register's lanes more.
    template <class T>
    void add(T* targets, std::int64_t n) {
        constexpr int N = lanes<double>;
        Vec<double, N> sums{}, all{};
        for (std::int64_t p = n; p % N; ++p) targets[p] = 0;
        for (std::int64_t p = 0; p < n; p += N) {
            const auto wanted = __builtin_convertvector((load<T, N>(targets + p)), Vec<double, N>);
            sums += wanted;
            all = add_product<double, N>(all, wanted, wanted);
        }
        for (int i = 0; i < N; ++i) {
            sum += sums[i];
            squares += all[i];
        }
        weight += static_cast<double>(n);
    }

    // Adds n targets with the roots of their weights, by which they are multiplied.
    template <class T>
    void add(T* targets, T* roots, std::int64_t n) {
        constexpr int N = lanes<double>;
        using V = Vec<double, N>;
        V sums{}, all{}, weights{};
        for (std::int64_t p = n; p % N; ++p) targets[p] = roots[p] = 0;
        for (std::int64_t p = 0; p < n; p += N) {
            const V target = __builtin_convertvector((load<T, N>(targets + p)), V);
            const V root = __builtin_convertvector((load<T, N>(roots + p)), V);
            sums = add_product<double, N>(sums, root, target);
            all = add_product<double, N>(all, target, target);
            weights = add_product<double, N>(weights, root, root);
        }
        for (int i = 0; i < N; ++i) {
            sum += sums[i];
            squares += all[i];
            weight += weights[i];
        }
    }
};

// Vectors of k factors and where to gather them: n rows of `width` numbers, and the rows of their sums times
// the targets and of their sums. If Weighted, the vectors are multiplied by the roots of the weights, and those in
// the last sums by the weights.
template <class T>
struct Gathering {
    const T* other;
    std::int64_t step;  // between vectors of `other`
    const std::int32_t* indices;
    const T* targets;
    const T* roots;
    std::int64_t n;
    T* tile;
    T* sums;
    std::int64_t width;
};

// Cols times N factors from j on.
template <class T, bool Weighted, int Cols, int N>
inline void gather_strip(const Gathering<T>& to, std::int64_t j) {
    Vec<T, N> wanted[Cols], all[Cols];
    for (int c = 0; c < Cols; ++c) {
        wanted[c] = load<T, N>(to.sums + j + c * N);
        all[c] = load<T, N>(to.sums + to.width + j + c * N);
    }
    T* packed = to.tile + j;
    for (std::int64_t p = 0; p < to.n; ++p, packed += to.width) {
        const T* row = to.other + to.indices[p] * to.step + j;
        const Vec<T, N> target = broadcast<T, N>(to.targets[p]);
        unrolled<Cols>([&](auto c) __attribute__((always_inline)) {
            Vec<T, N> v = load<T, N>(row + c * N);
            if constexpr (Weighted) {
                const Vec<T, N> root = broadcast<T, N>(to.roots[p]);
                v *= root;
                all[c] = add_product<T, N>(all[c], v, root);
            } else {
                all[c] += v;
            }
            store<T, N>(packed + c * N, v);
            wanted[c] = add_product<T, N>(wanted[c], v, target);
        });
    }
    for (int c = 0; c < Cols; ++c) {
        store<T, N>(to.sums + j + c * N, wanted[c]);
        store<T, N>(to.sums + to.width + j + c * N, all[c]);
    }
}

// The factors from j to k, in strips that halve towards the end.
template <class T, bool Weighted, int Cols = 4, int N = lanes<T>>
inline void gather(const Gathering<T>& to, std::int64_t k, std::int64_t j = 0) {
    for (; j + Cols * N <= k; j += Cols * N) gather_strip<T, Weighted, Cols, N>(to, j);
    if constexpr (Cols > 1)
        gather<T, Weighted, Cols / 2, N>(to, k, j);
    else if constexpr (N > 1)
        gather<T, Weighted, 1, N / 2>(to, k, j);
}

// The Gram matrix of one row's data, added to work.start, and behind it the sums of the factors times the
// targets, and of the factors: vectors of k at a distance of `step` in `other`, if Weighted times the roots of the
// weights. equation(place, column) returns an entry's Equation.
template <class T, bool Weighted, class EquationOf>
[[gnu::always_inline]] inline TargetSums accumulate(const Csr<T>& ratings, std::int64_t row, const T* other,
                                                    std::int64_t step, std::int64_t k, const Workspace<T>& work,
                                                    T* gram, const EquationOf& equation) {
    const std::int64_t begin = ratings.indptr[row], end = ratings.indptr[row + 1];
    const std::int64_t stored = ratings.indptr[ratings.n_rows];
    const std::int32_t* indices = ratings.indices;
    T* sums = gram + work.width * work.width;
    __builtin_memset(sums, 0, rhs_columns * work.width * sizeof(T));
    TargetSums found;
    std::int64_t start = begin;
    do {
        const std::int64_t n = end - start < work.tile_rows ? end - start : work.tile_rows;
        for (std::int64_t p = 0; p < n; ++p) {
            const Equation<T> entry = equation(start + p, indices[start + p]);
            work.targets[p] = entry.target;
            if constexpr (Weighted) work.roots[p] = entry.root;
        }
        if constexpr (Weighted) found.add(work.targets, work.roots, n);
        else found.add(work.targets, n);
        gather<T, Weighted>({other, step, indices + start, work.targets, work.roots, n, work.tile, sums, work.width}, k);
        std::int64_t first = start + n > work.fetched ? start + n : work.fetched;
        work.fetched = start + n + work.ahead < stored ? start + n + work.ahead : stored;
        for (; first + n < work.fetched; ++first)
            for (std::int64_t j = 0; j < k; j += Ahead<T>::line) __builtin_prefetch(other + indices[first] * step + j, 0, 2);
        const Ahead<T> ahead{other, k, step, indices + first, work.fetched - first};
        gram_update({work.tile, n, work.width}, work.width, start == begin ? work.start : gram, gram, ahead);
        start += n;
    } while (start < end);
    return found;
}

// One vector for each of W neighbouring numbers, from `count` lanes that are `distance` apart. Idle lanes repeat the first.
template <class T>
inline void load_lanes(const T* first, int count, std::int64_t distance, Vec<T, lanes<T>> (&v)[lanes<T>]) {
    constexpr int W = lanes<T>;
    for (int l = 0; l < W; ++l) v[l] = load<T, W>(first + (l < count ? l : 0) * distance);
    transpose<T, W>(v);
}

// From one system per lane, `distance` apart, to one lane per system. A system has its upper triangle,
// then from row `first_side` on its right-hand sides, in rows of `stride`.
template <class T>
inline void interleave_systems(const LaneSystems<T>& systems, const T* first, int count, std::int64_t distance,
                               std::int64_t stride, std::int64_t first_side) {
    constexpr int W = lanes<T>;
    using V = Vec<T, W>;
    const std::int64_t size = systems.size;
    V v[W];
    for (std::int64_t i = 0; i < size; ++i)
        for (std::int64_t j = i / W * W; j < size; j += W) {
            load_lanes(first + i * stride + j, count, distance, v);
            for (int c = 0; c < W && j + c < size; ++c)
                if (j + c >= i / panel * panel) systems.at(i, j + c) = v[c];
        }
    for (int side = 0; side < rhs_columns; ++side)
        for (std::int64_t j = 0; j < size; j += W) {
            load_lanes(first + (first_side + side) * stride + j, count, distance, v);
            for (std::int64_t c = 0; c < W && j + c < size; ++c) systems.right(j + c)[side] = v[c];
        }
}

}  // namespace lowrank::LOWRANK_ISA
