// Arrays of Python as arguments, and checks that all entry points share.

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

// noconvert: a silent copy of an output would lose the result, of an input the time.
inline auto argument(const char* name) { return nb::arg(name).noconvert(); }
inline nb::arg_v argument(const nb::arg_v& with_default) { return with_default; }

template <class Function, class... Arguments>
void add(nb::module_& m, const char* name, Function* function, Arguments... arguments) {
    m.def(name, function, argument(arguments)...);
}

// The entry points of entries.cpp.
void add_entries(nb::module_& m);

}  // namespace lowrank
