// Short vectors through the compiler's vector extensions: `a * b` works lane by lane. Sums of products that are rounded
// once, where the instruction set has them, are add_product and subtract_product.

#pragma once

#include <cstdint>
#include <utility>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#ifndef LOWRANK_VECTOR_BYTES
#error "each isa_*.cpp defines LOWRANK_VECTOR_BYTES and LOWRANK_ISA first"
#endif

namespace lowrank::LOWRANK_ISA {

template <class T, int N>
struct VecType {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T>
struct VecType<T, 1> {
    typedef T type;
};
template <class T, int N>
using Vec = typename VecType<T, N>::type;

// Whether there are 32 registers of this length, not 16, as with AVX-512 and on arm64.
#ifdef __aarch64__
inline constexpr bool many_registers = true;
#else
inline constexpr bool many_registers = LOWRANK_VECTOR_BYTES == 64;
#endif

// Lanes in a full register.
template <class T>
inline constexpr int lanes = LOWRANK_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> load(const T* p) {
    Vec<T, N> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// v, loaded once, since the compiler would load it again for each use.
template <class V>
[[gnu::always_inline]] inline V in_register(V v) {
#ifdef __x86_64__
    __asm__("" : "+v"(v));
#endif
    return v;
}

template <class T, int N>
[[gnu::always_inline]] inline void store(T* p, Vec<T, N> v) {
    __builtin_memcpy(p, &v, sizeof v);
}

template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> broadcast(T x) {
    return x - Vec<T, N>{};
}

// Products that are rounded once, together with the sum. Compilers may not fuse products on their own, because each of
// them would choose others: the fused ones are named here, so that the bits of a result depend on the instruction set
// alone.
#if defined(__aarch64__)
inline constexpr bool has_fused = true;
#else
inline constexpr bool has_fused = LOWRANK_VECTOR_BYTES > 16;
#endif

template <class T>
[[gnu::always_inline]] inline T fused(T a, T b, T sum) {
    return sizeof(T) == 4 ? __builtin_fmaf(a, b, sum) : __builtin_fma(a, b, sum);
}

// sum + a b
template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> fused_sum(Vec<T, N> sum, Vec<T, N> a, Vec<T, N> b) {
    constexpr int bytes = N * static_cast<int>(sizeof(T));
    constexpr bool is_float = sizeof(T) == 4;
    if constexpr (N == 1) {
        return fused<T>(a, b, sum);
    } else if constexpr (bytes < 16) {
        for (int i = 0; i < N; ++i) sum[i] = fused<T>(a[i], b[i], sum[i]);
        return sum;
    }
#if defined(__aarch64__)
    else if constexpr (is_float) return vfmaq_f32(sum, a, b);
    else return vfmaq_f64(sum, a, b);
#elif LOWRANK_VECTOR_BYTES > 16
    else if constexpr (bytes == 16 && is_float) return _mm_fmadd_ps(a, b, sum);
    else if constexpr (bytes == 16) return _mm_fmadd_pd(a, b, sum);
    else if constexpr (bytes == 32 && is_float) return _mm256_fmadd_ps(a, b, sum);
    else if constexpr (bytes == 32) return _mm256_fmadd_pd(a, b, sum);
    else if constexpr (is_float) return _mm512_fmadd_ps(a, b, sum);
    else return _mm512_fmadd_pd(a, b, sum);
#endif
}

// sum - a b
template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> fused_difference(Vec<T, N> sum, Vec<T, N> a, Vec<T, N> b) {
    constexpr int bytes = N * static_cast<int>(sizeof(T));
    constexpr bool is_float = sizeof(T) == 4;
    if constexpr (bytes < 16) return fused_sum<T, N>(sum, -a, b);
#if defined(__aarch64__)
    else if constexpr (is_float) return vfmsq_f32(sum, a, b);
    else return vfmsq_f64(sum, a, b);
#elif LOWRANK_VECTOR_BYTES > 16
    else if constexpr (bytes == 16 && is_float) return _mm_fnmadd_ps(a, b, sum);
    else if constexpr (bytes == 16) return _mm_fnmadd_pd(a, b, sum);
    else if constexpr (bytes == 32 && is_float) return _mm256_fnmadd_ps(a, b, sum);
    else if constexpr (bytes == 32) return _mm256_fnmadd_pd(a, b, sum);
    else if constexpr (is_float) return _mm512_fnmadd_ps(a, b, sum);
    else return _mm512_fnmadd_pd(a, b, sum);
#endif
}

// sum + a b, fused where the instruction set can.
template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> add_product(Vec<T, N> sum, Vec<T, N> a, Vec<T, N> b) {
    if constexpr (has_fused) return fused_sum<T, N>(sum, a, b);
    else return sum + a * b;
}

// sum - a b, fused where the instruction set can.
template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> subtract_product(Vec<T, N> sum, Vec<T, N> a, Vec<T, N> b) {
    if constexpr (has_fused) return fused_difference<T, N>(sum, a, b);
    else return sum - a * b;
}

template <class T>
[[gnu::always_inline]] inline Vec<T, lanes<T>> square_root(Vec<T, lanes<T>> v) {
    for (int i = 0; i < lanes<T>; ++i) v[i] = sizeof(T) == 4 ? __builtin_sqrtf(v[i]) : __builtin_sqrt(v[i]);
    return v;
}

// N lanes, number i of them number place(i) of the lanes of a and b; `place` captures nothing.
template <int N, class V, class Place>
[[gnu::always_inline]] inline auto shuffle(V a, V b, Place) {
    return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        return __builtin_shufflevector(a, b, Place{}(I)...);
    }(std::make_integer_sequence<int, N>{});
}

// Transposes N vectors of N lanes in place: log2(N) perfect shuffles.
template <class T, int N>
[[gnu::always_inline]] inline void transpose(Vec<T, N> (&v)[N]) {
    for (int stage = 1; stage < N; stage *= 2) {
        Vec<T, N> shuffled[N];
        for (int i = 0; i < N / 2; ++i) {
            const auto a = v[i], b = v[i + N / 2];
            shuffled[2 * i] = shuffle<N>(a, b, [](int lane) { return lane / 2 + lane % 2 * N; });
            shuffled[2 * i + 1] = shuffle<N>(a, b, [](int lane) { return N / 2 + lane / 2 + lane % 2 * N; });
        }
        for (int i = 0; i < N; ++i) v[i] = shuffled[i];
    }
}

// Calls use(0), use(1) ... with constants, unrolled, so that arrays indexed by them stay in registers.
template <int N, class Use>
[[gnu::always_inline]] inline void unrolled(const Use& use) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (use(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// Calls use(row, column) with constants for each place of a block, so that it stays in registers.
template <int Rows, int Cols, class Use>
[[gnu::always_inline]] inline void unrolled(const Use& use) {
    unrolled<Rows>([&](auto row) __attribute__((always_inline)) {
        unrolled<Cols>([&](auto column) __attribute__((always_inline)) { use(row, column); });
    });
}

// Calls use(n) with n, from 1 to Most, as a constant.
template <int Most, class Use>
[[gnu::always_inline]] inline void with_constant(std::int64_t n, const Use& use) {
    if (n == Most) use(std::integral_constant<int, Most>{});
    else if constexpr (Most > 1) with_constant<Most - 1>(n, use);
}

inline constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
    return (n + step - 1) / step * step;
}

}  // namespace lowrank::LOWRANK_ISA
