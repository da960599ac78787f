#define LOWRANK_ISA baseline
#define LOWRANK_VECTOR_BYTES 16

#include "table.hpp"
namespace lowrank {
const KernelTable baseline_kernels = baseline::table("baseline");
}
