// Python arrays as arguments, the checks that all entry points share, and the active kernels.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "entries.hpp"
#include "kernels.hpp"

namespace lowrank {

namespace nb = nanobind;

template <class T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require(bool ok, const char* message) {
    if (!ok) throw std::invalid_argument(message);
}

inline void check_offsets(const In1<std::int64_t>& indptr, std::size_t n_entries, std::size_t n_values, std::int64_t n_rows) {
    require(static_cast<std::int64_t>(indptr.size()) == n_rows + 1, "indptr must have one entry more than rows");
    require(n_entries == n_values, "indices and data must have the same length");
    require(indptr.data()[0] == 0 && indptr.data()[n_rows] == static_cast<std::int64_t>(n_entries),
            "indptr must run from 0 to the number of stored entries");
}

// noconvert: a silent copy of an output would lose the result; of an input, it would cost time.
inline auto argument(const char* name) { return nb::arg(name).noconvert(); }
template <class Default>
Default argument(const Default& with_default) {
    return with_default;
}

template <class Function, class... Arguments>
void add(nb::module_& m, const char* name, Function* function, Arguments... arguments) {
    m.def(name, function, argument(arguments)...);
}

// The kernels of the instruction set that is used (module.cpp).
extern const KernelTable* active;

template <class T>
const Kernels<T>& kernels() {
    if constexpr (sizeof(T) == 4) return active->f32;
    else return active->f64;
}

// Values of the entries: numbers; or codes with their 256 levels and, if any, shifts of rows and columns.
template <class T>
using Coded = std::tuple<In1<std::uint8_t>, In1<T>, In1<T>, In1<T>>;
template <class T>
using Values = std::variant<In1<T>, Coded<T>>;

template <class T>
Csr<T> csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const In1<T>& data,
           std::int64_t n_rows, std::int64_t n_cols) {
    check_offsets(indptr, indices.size(), data.size(), n_rows);
    return {indptr.data(), indices.data(), data.data(), n_rows, n_cols};
}

template <class T>
Csr<T> csr(const In1<std::int64_t>& indptr, const In1<std::int32_t>& indices, const Values<T>& values,
           std::int64_t n_rows, std::int64_t n_cols) {
    if (const In1<T>* data = std::get_if<In1<T>>(&values)) return csr<T>(indptr, indices, *data, n_rows, n_cols);
    const auto& [codes, levels, row_shift, column_shift] = std::get<Coded<T>>(values);
    check_offsets(indptr, indices.size(), codes.size(), n_rows);
    require(levels.size() == entries::most_levels, "levels must have 256 entries");
    const bool shifted = row_shift.size() > 0 || column_shift.size() > 0;
    require(!shifted || (static_cast<std::int64_t>(row_shift.size()) == n_rows &&
                         static_cast<std::int64_t>(column_shift.size()) == n_cols),
            "shifts must have one entry per row and column");
    return {indptr.data(), indices.data(), nullptr, n_rows, n_cols, codes.data(), levels.data(),
            shifted ? row_shift.data() : nullptr, shifted ? column_shift.data() : nullptr};
}

// The entry points of entries.cpp, products.cpp, search.cpp and sweeps.cpp.
void add_entries(nb::module_& m);
void add_products(nb::module_& m);
void add_search(nb::module_& m);
void add_sweeps(nb::module_& m);

}  // namespace lowrank
