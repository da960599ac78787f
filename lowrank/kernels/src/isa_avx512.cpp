#define LOWRANK_ISA avx512
#define LOWRANK_VECTOR_BYTES 64

#include "table.hpp"
namespace lowrank {
const KernelTable avx512_kernels = avx512::table("avx512");
}
