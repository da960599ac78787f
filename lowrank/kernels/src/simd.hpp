// Short vectors through the compiler's vector extensions: `a * b + c` works lane by lane and
// becomes a fused multiply-add where the instruction set has one.

#pragma once

#include <cstdint>
#include <utility>

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

// acc + a b, rounded once if the instruction set can. For scalars, the compiler would fuse some expressions only.
template <class T, int N>
[[gnu::always_inline]] inline Vec<T, N> add_product(Vec<T, N> acc, Vec<T, N> a, Vec<T, N> b) {
#if defined(__FMA__) || defined(__aarch64__)
    if constexpr (N == 1) return sizeof(T) == 4 ? __builtin_fmaf(a, b, acc) : __builtin_fma(a, b, acc);
#endif
    return acc + a * b;
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
