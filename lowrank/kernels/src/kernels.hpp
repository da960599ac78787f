// The problems that the kernels solve, as plain structs, and a table of functions.
//
// Each isa_*.cpp compiles the same templates for one instruction set and exports one KernelTable;
// module.cpp chooses a table when it is imported, and the entry points distribute the rows over threads.
// The kernels themselves are single-threaded, allocate nothing and use no standard-library templates,
// so that no AVX instruction can reach a machine without AVX through a function the linker has merged.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lowrank {

// A compressed sparse row matrix with indices sorted within each row. Its values are `data` or, if that is null,
// levels[codes[p]] minus the shifts of row and column, if any.
template <class T>
struct Csr {
    const std::int64_t* indptr;
    const std::int32_t* indices;
    const T* data;
    std::int64_t n_rows;
    std::int64_t n_cols;
    const std::uint8_t* codes = nullptr;
    const T* levels = nullptr;  // 256 numbers, so that all codes are valid
    const T* row_shift = nullptr;
    const T* column_shift = nullptr;

    T value(std::int64_t row, std::int64_t p) const {
        if (data) return data[p];
        const T level = levels[codes[p]];
        return row_shift ? level - row_shift[row] - column_shift[indices[p]] : level;
    }
};

// One half-sweep of alternating least squares: for each row u with observations (i, x_ui)
//
//   minimise  sum_i w_ui (x_ui - shift - other_bias_i - a_u . m_i - b_u)^2
//             + penalty_u |a_u|^2 + bias_penalty_u b_u^2
//
// over a_u (k numbers; with `nonnegative` none below zero) and, with fit_bias, over b_u. Rows without observations
// become zero.
template <class T>
struct AlsProblem {
    Csr<T> ratings;
    const T* other;         // n_cols x k, the fixed factors m_i
    const T* other_bias;    // n_cols, the fixed biases c_i
    const T* penalty;       // n_rows
    const T* bias_penalty;  // n_rows
    T* factors;             // n_rows x k, out; with `nonnegative` also in, where the search starts
    T* bias;                // n_rows, out
    double* objective;      // n_rows, out: the row's minimum, penalties included
    double shift;
    std::int64_t k;
    bool fit_bias;
    const T* weights;  // one for each observation; or null for ones
    bool nonnegative;
};

// One half-sweep of implicit alternating least squares: for each row u with interactions i of weight v_ui
//
//   minimise  sum_i v_ui (1 - a_u . m_i)^2 + a_u' gram a_u + penalty_u |a_u|^2 - 2 right_u . a_u
//
// With residuals root(v_ui) (t_ui - a_u . m_i) of the given factors, t_ui replaces 1, and the residuals become those of
// the new factors. With `nonnegative`, over a_u >= 0, without residuals.
template <class T>
struct ImplicitProblem {
    Csr<T> weights;
    const T* other;     // n_cols x k, the fixed factors m_i
    const T* gram;      // k x k, symmetric
    const T* penalty;   // n_rows
    const T* right;     // n_rows x k, or null for zeros
    T* factors;         // n_rows x k, out; with residuals or `nonnegative` also in
    double* objective;  // n_rows, out: the row's minimum
    std::int64_t k;
    T* residual;  // one for each entry, in and out; or null
    bool nonnegative;
};

// Passes of coordinate descent for each row x >= 0 of factors on  x'G x - 2 p'x,  with p its row of products.
template <class T>
struct DescentProblem {
    const T* gram;      // k x k, symmetric
    const T* products;  // n_rows x k
    T* factors;         // n_rows x k, in and out
    std::int64_t k;
    std::int64_t passes;
};

// A pseudo-random function of 64 bits: SplitMix64 of Steele, Lea and Flood (2014). Inlined, so that each instruction
// set has its own.
[[gnu::always_inline]] inline std::uint64_t mixed(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// The n best unseen items in `order` for each query, by score = ((offset + bias_i) + x . y_i) + the sum over the
// history of the query of value_j S_ji. NaN and minus infinity are left out. Equal scores are in ascending order of
// mixed(tie_items_i ^ tie_queries_q), or of items.
struct TopKProblem {
    const float* users;   // n_queries x k, the vectors x
    const float* offset;  // n_queries
    const float* items;   // n_items x k, the vectors y_i
    const float* bias;    // n_items
    const float* weight;  // n_items: score = weight_i clip((offset bias_i) x . y_i, -1, 1); or null
    std::int64_t k;
    Csr<float> history;  // n_queries rows; without one, indptr is null
    Csr<float> sparse;   // S; its columns are places in the order
    const std::int32_t* order;
    std::int64_t n_order;
    // Bounds that end a query early, or null: user_size * size[p] >= x . y_i and lift[p] >= bias_i for all
    // items i from place p of the order on (with weights, size is zero and lift[p] >= |weight_i|).
    const float* user_size;  // n_queries
    const float* size;       // n_order
    const float* lift;       // n_order
    // Products are computed up to stops[0], stops[1], ... k. The remainder after stops[s] is at most
    // user_rest * item_rest, by which most items can be skipped before the end.
    const std::int64_t* stops;
    std::int64_t n_stops;
    const float* user_rest;  // n_stops x n_queries
    const float* item_rest;  // n_stops x n_order
    const std::int64_t* seen_rows;  // n_queries: the row of each in a CSR matrix of seen items; or null
    const std::int64_t* seen_indptr;
    const std::int32_t* seen_indices;
    const std::uint64_t* tie_items;    // n_items; or null
    const std::uint64_t* tie_queries;  // n_queries; or null for zeros
    std::int64_t n_queries;
    std::int64_t n;
    std::int32_t* found;   // n_queries x n, out: items, best first, then -1
    float* scores;         // n_queries x n, out
    std::int64_t* counts;  // n_queries, out: items found
};

// The largest entries of rows of X' diag(weight) X for a CSR matrix X, given with its transpose: of row j, times
// scale_j out_i, the `most` entries with the largest absolute values, sorted by column.
struct GramProblem {
    Csr<float> by_row;     // X: its columns are numbered as those of the result
    Csr<float> by_column;  // X', with columns of X in any order
    const float* weight;   // rows of X
    const float* scale;    // rows of X'
    const float* out;      // columns of X
    std::int64_t most;
    std::int64_t first;     // row of X' that is row 0 of the result
    std::int32_t* columns;  // n x most, out
    float* values;          // n x most, out
    std::int64_t* counts;   // n, out
};

// The largest sums over pairs of an entry and a later one of the same sequence, as in GramProblem: of row r, the sum over
// the places p of the item rows[r] and over lag = 1, 2, ... of weight_p decay[lag] weight_{p + lag}, at the item of
// p + lag. `lags` has the number of places from each to the end of its sequence, 1 for the last; `decay` has no more lags
// than count.
struct PairProblem {
    Csr<float> by_item;         // of each item its places, with their weights
    const std::int32_t* items;  // of each place
    const float* weights;
    const std::int32_t* lags;
    const float* decay;
    std::int64_t reach;  // largest lag
    std::int64_t n_cols;
    const std::int64_t* rows;
    std::int64_t most;
    std::int32_t* columns;  // n x most, out
    float* values;          // n x most, out
    std::int64_t* counts;   // n, out
};

struct PairDots {
    const float* left;
    const float* right;
    std::int64_t k;
    const std::int64_t* rows;
    const std::int64_t* others;
    float* dots;  // out
};

struct RetrievalKernels {
    std::size_t (*topk_workspace)(const TopKProblem&, std::int64_t block_users);
    void (*topk_users)(const TopKProblem&, std::int64_t begin, std::int64_t end, std::int64_t block_users,
                       void* workspace);
    void (*pair_dots)(const PairDots&, std::int64_t begin, std::int64_t end);
    // found[p] = the sum over row rows[p] of the history of value_j S_j,columns[p], for p in begin:end.
    void (*sparse_pairs)(const Csr<float>& history, const Csr<float>& S, const std::int64_t* rows,
                         const std::int64_t* columns, float* found, std::int64_t begin, std::int64_t end);
    // Y[begin:end] = (history S)[begin:end], dense.
    void (*sparse_rows)(const Csr<float>& history, const Csr<float>& S, float* Y, std::int64_t begin,
                        std::int64_t end);
    // Bytes of scratch memory for the largest `most` of n_cols entries of a row.
    std::size_t (*row_workspace)(std::int64_t n_cols, std::int64_t most);
    void (*gram_rows)(const GramProblem&, std::int64_t begin, std::int64_t end, void* workspace);
    void (*pair_rows)(const PairProblem&, std::int64_t begin, std::int64_t end, void* workspace);
    void (*block_maxima)(const float* scores, std::int64_t size, std::int64_t count, float* maxima);
    std::int64_t (*next_at_least)(const float* scores, std::int64_t i, std::int64_t n, float bar);
};

// One half-sweep of Bayesian matrix factorisation. A vector is k factors followed by a bias. Row u
// has the normal equations A w = r with, over its observations (i, x_ui) and z_i = (m_i, 1),
//
//   A = sum_i z_i z_i' + C_mm + weight_u prior,   r = sum_i z_i (x_ui - shift - c_i) - C_mc + prior_right_u
//
// where C is the row of `covariance`: the sum of the covariances of the vectors (m_i, c_i) of its columns, as an upper
// triangle by rows. With `invert` it is replaced by noise_variance A^-1, packed the same way.
template <class T>
struct PosteriorProblem {
    Csr<T> ratings;
    const T* other;        // n_cols x k, the factors m_i, in rows of `step` numbers
    const T* other_bias;   // n_cols, the biases c_i, `bias_step` numbers from one to the next
    std::int64_t step, bias_step;
    const T* prior;        // (k + 1) x (k + 1)
    const T* weight;       // n_rows
    const T* prior_right;  // n_rows x (k + 1)
    T* covariance;         // n_rows x (k + 1)(k + 2) / 2, in and out; or null for none
    T* vectors;            // n_rows x (k + 1), out: w
    double* objective;     // n_rows, out: sum_i (x_ui - shift - c_i)^2 + C_cc - r' A^-1 r
    double* log_det;       // n_rows, out: log det A
    double shift;
    double noise_variance;
    std::int64_t k;
    bool invert;
};

// Ornstein-Uhlenbeck processes of mean zero, one for each row, and noisy observations of them in order of time.
// At a distance t in time the correlation of a process is exp(-t / scale).
template <class T>
struct DriftProblem {
    const std::int64_t* indptr;
    const T* gaps;  // time since the previous observation; not used for the first of a row
    const T* data;
    double noise;     // variance of an observation around the process
    double variance;  // of the process
    double scale;
    T* means;          // out, of the process at each observation given all of the row; or null
    T* variances;      // out, likewise
    double* evidence;  // n_rows, out: log p(data) + sum (log noise + log 2 pi) / 2
};

template <class T>
struct Kernels {
    // Bytes of 64-byte-aligned scratch that the next three need for factors of length k.
    std::size_t (*sweep_workspace)(std::int64_t k);
    void (*als_rows)(const AlsProblem<T>&, std::int64_t begin, std::int64_t end, void* workspace);
    void (*implicit_rows)(const ImplicitProblem<T>&, std::int64_t begin, std::int64_t end, void* workspace);
    void (*posterior_rows)(const PosteriorProblem<T>&, std::int64_t begin, std::int64_t end, void* workspace);
    void (*drift_rows)(const DriftProblem<T>&, std::int64_t begin, std::int64_t end);
    // Bytes of 64-byte-aligned scratch that the next one needs.
    std::size_t (*descent_workspace)(std::int64_t k);
    void (*descent_rows)(const DescentProblem<T>&, std::int64_t begin, std::int64_t end, void* workspace);
    // out_p = sum_j<k w_uj z_ij + w_uk + z_ik for the entries p = (u, i) of the rows begin:end of A, whose data are not
    // used, and vectors w and z of k factors and a bias.
    void (*entry_rows)(const Csr<T>&, const T* left, const T* right, std::int64_t k, T* out, std::int64_t begin,
                       std::int64_t end);
    // Y[begin:end] = A[begin:end] X, with X of shape n_cols x columns; rows are x_step and y_step numbers apart. Where
    // A has neither data nor codes, each entry is the first of the levels.
    void (*matmat_rows)(const Csr<T>&, const T* X, std::int64_t x_step, std::int64_t columns, T* Y, std::int64_t y_step,
                        std::int64_t begin, std::int64_t end);
    // Y[begin:end] = (A' X)[begin:end], with X of shape n_rows x width: the columns begin:end of A.
    void (*rmatmat_cols)(const Csr<T>&, const T* X, std::int64_t width, T* Y, std::int64_t begin, std::int64_t end);
    // P += V[begin:end]' W[begin:end], with V of shape n x size and W of shape n x width.
    void (*coefficient_rows)(const T* V, std::int64_t stride, std::int64_t size, const T* W,
                             std::int64_t width, T* P, std::int64_t begin, std::int64_t end);
    // squares[j] += the sum over the rows begin:end of (P[:, j] - V[:, j] s[j])^2, with V of shape n x width.
    void (*distance_rows)(const T* P, std::int64_t stride, const T* V, const T* s, std::int64_t width, T* squares,
                          std::int64_t begin, std::int64_t end);
    // factor H, with H of shape size x width, in the order of the next two.
    void (*pack_columns)(const T* H, std::int64_t size, std::int64_t width, T factor, T* packed);
    // W[begin:end] = V[begin:end] H; and W[begin:end] += V[begin:end] H
    void (*multiply_rows)(const T* V, std::int64_t stride, std::int64_t size, const T* packed, std::int64_t width,
                          T* W, std::int64_t begin, std::int64_t end);
    void (*add_product_rows)(const T* V, std::int64_t stride, std::int64_t size, const T* packed, std::int64_t width,
                             T* W, std::int64_t begin, std::int64_t end);
};

struct KernelTable {
    const char* name;
    std::int64_t batch_rows;  // rows that als_rows solves together: hand out multiples of it
    Kernels<float> f32;
    Kernels<double> f64;
    RetrievalKernels retrieval;
};

extern const KernelTable baseline_kernels;
#ifdef LOWRANK_X86
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

}  // namespace lowrank
