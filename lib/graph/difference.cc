#include "graph/difference.h"

#include <cstring>

namespace graphcache {
namespace {

bool same_bytes(const Content& a, const NodeContent& of_a, const Content& b, const NodeContent& of_b) {
  if (of_a.size != of_b.size || of_a.size == 0) return of_a.size == of_b.size;
  return std::memcmp(a.bytes.data() + of_a.bytes, b.bytes.data() + of_b.bytes, of_a.size) == 0;
}

}  // namespace

Change change(const Content& from, const Content& to, std::uint32_t index) {
  const NodeContent& a = from.nodes[index];
  const NodeContent& b = to.nodes[index];
  if (!a.readable || !b.readable) return Change::kOther;
  const bool same = same_bytes(from, a, to, b);
  if (a.type != cudaGraphNodeTypeKernel) return same ? Change::kNone : Change::kOther;
  const CUDA_KERNEL_NODE_PARAMS& x = a.kernel;
  const CUDA_KERNEL_NODE_PARAMS& y = b.kernel;
  if (x.func != y.func || x.kern != y.kern || x.blockDimX != y.blockDimX || x.blockDimY != y.blockDimY ||
      x.blockDimZ != y.blockDimZ || x.sharedMemBytes != y.sharedMemBytes) {
    return Change::kOther;
  }
  if (x.gridDimX != y.gridDimX || x.gridDimY != y.gridDimY || x.gridDimZ != y.gridDimZ) return Change::kGrid;
  return same ? Change::kNone : Change::kArguments;
}

}  // namespace graphcache
