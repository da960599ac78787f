#define LOWRANK_ISA avx2
#define LOWRANK_VECTOR_BYTES 32

#include "table.hpp"
namespace lowrank {
const KernelTable avx2_kernels = avx2::table("avx2");
}
