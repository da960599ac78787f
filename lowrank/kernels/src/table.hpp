// The table of this instruction set's kernels; included once by each isa_*.cpp.

#pragma once

#include "als.hpp"
#include "basis.hpp"
#include "descent.hpp"
#include "drift.hpp"
#include "implicit.hpp"
#include "posterior.hpp"
#include "scan.hpp"
#include "spmm.hpp"
#include "topk.hpp"
#include "weights.hpp"

namespace lowrank::LOWRANK_ISA {

template <class T>
constexpr Kernels<T> kernels() {
    return {sweep_workspace<T>, als_rows<T>, implicit_rows<T>, posterior_rows<T>, drift_rows<T>,
            descent_workspace<T>, descent_rows<T>, entry_rows<T>,
            matmat_rows<T>, rmatmat_cols<T>, coefficient_rows<T>, distance_rows<T>, pack_columns<T>,
            product_rows<false, T>, product_rows<true, T>};
}

constexpr KernelTable table(const char* name) {
    return {name, lanes<float>, kernels<float>(), kernels<double>(),
            {topk_workspace, topk_users, pair_dots_range, sparse_pairs, sparse_rows, row_workspace, gram_rows,
             pair_rows, block_maxima, next_at_least}};
}

}  // namespace lowrank::LOWRANK_ISA
