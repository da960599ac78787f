// Coordinate descent on non-negative least squares that share a Gram matrix, one row in each lane:
//
//   minimise  x'G x - 2 p'x  over x >= 0 by  x_i <- max(0, x_i - (G_i x - p_i) / G_ii)  for i = 0 ... k - 1
//
// as in hierarchical alternating least squares (Cichocki & Phan 2009). No step raises the objective.

#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace lowrank::LOWRANK_ISA {

inline constexpr int descent_groups = 4;  // vectors of rows at once, so that their sums do not wait for each other

template <class T>
std::size_t descent_workspace(std::int64_t k) {
    return 2 * k * descent_groups * sizeof(Vec<T, lanes<T>>);
}

// Number i of `count` rows of k numbers, as one number in each lane of descent_groups vectors; idle lanes are zero.
template <class T>
inline void load_group(const T* rows, std::int64_t k, std::int64_t count, Vec<T, lanes<T>>* group) {
    constexpr int W = lanes<T>;
    for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t r = 0; r < descent_groups * W; ++r)
            group[i * descent_groups + r / W][r % W] = r < count ? rows[r * k + i] : 0;
}

template <class T>
inline void descend_group(const DescentProblem<T>& problem, const Vec<T, lanes<T>>* products, Vec<T, lanes<T>>* x) {
    constexpr int W = lanes<T>, R = descent_groups;
    using V = Vec<T, W>;
    const std::int64_t k = problem.k;
    for (std::int64_t i = 0; i < k; ++i) {
        const T* row = problem.gram + i * k;
        if (!(row[i] > 0)) continue;
        const V scale = broadcast<T, W>(1 / row[i]);
        V slope[R];
        unrolled<R>([&](auto r) __attribute__((always_inline)) { slope[r] = -products[i * R + r]; });
        for (std::int64_t j = 0; j < k; ++j) {
            const V g = broadcast<T, W>(row[j]);
            unrolled<R>([&](auto r) __attribute__((always_inline)) {
                slope[r] = add_product<T, W>(slope[r], g, x[j * R + r]);
            });
        }
        unrolled<R>([&](auto r) __attribute__((always_inline)) {
            const V to = add_product<T, W>(x[i * R + r], -slope[r], scale);
            x[i * R + r] = to > 0 ? to : V{};
        });
    }
}

template <class T>
void descent_rows(const DescentProblem<T>& problem, std::int64_t begin, std::int64_t end, void* memory) {
    constexpr std::int64_t most = descent_groups * lanes<T>;
    const std::int64_t k = problem.k;
    auto* x = static_cast<Vec<T, lanes<T>>*>(memory);
    auto* products = x + k * descent_groups;
    for (std::int64_t first = begin; first < end; first += most) {
        const std::int64_t count = end - first < most ? end - first : most;
        load_group(problem.factors + first * k, k, count, x);
        load_group(problem.products + first * k, k, count, products);
        for (std::int64_t pass = 0; pass < problem.passes; ++pass) descend_group(problem, products, x);
        for (std::int64_t r = 0; r < count; ++r)
            for (std::int64_t i = 0; i < k; ++i)
                problem.factors[(first + r) * k + i] = x[i * descent_groups + r / lanes<T>][r % lanes<T>];
    }
}

}  // namespace lowrank::LOWRANK_ISA
