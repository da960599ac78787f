// The Python module `lowrank.kernels._core`, and the choice of the instruction set.

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.hpp"

namespace lowrank {

namespace {

// The tables this machine can run, best last.
std::vector<const KernelTable*> supported_tables() {
    std::vector<const KernelTable*> tables{&baseline_kernels};
#ifdef LOWRANK_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        tables.push_back(&avx512_kernels);
#endif
    return tables;
}

void use(const std::string& name) {
    for (const KernelTable* table : supported_tables())
        if (name == table->name) {
            active = table;
            return;
        }
    throw std::invalid_argument("This machine cannot run the '" + name + "' kernels.");
}

std::vector<std::string> supported() {
    std::vector<std::string> names;
    for (const KernelTable* table : supported_tables()) names.emplace_back(table->name);
    return names;
}

}  // namespace

const KernelTable* active = supported_tables().back();

}  // namespace lowrank

NB_MODULE(_core, m) {
    using namespace lowrank;
    m.def("use", &use, nb::arg("name"));
    m.def("supported", &supported);
    m.def("active", [] { return std::string(active->name); });
    add_sweeps(m);
    add_products(m);
    add_search(m);
    add_entries(m);
}
