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
    return Change::kLaunch;
  }
  if (x.gridDimX != y.gridDimX || x.gridDimY != y.gridDimY || x.gridDimZ != y.gridDimZ) return Change::kGrid;
  return same ? Change::kNone : Change::kArguments;
}

// A node that holds slots in `to` is patched with the run's values in any case. A node that holds slots only in `from`
// gets its captured values back.
Difference difference(const Content& from, const Content& to) {
  constexpr auto cost = [](const Cost(&of)[kChangeCount], Change how) { return of[static_cast<std::size_t>(how)]; };
  Difference found;
  Cost by_patches = 0;
  Cost by_update = to.node_count * costs::kUpdateReads;
  bool patchable = true;
  auto of_from = from.slots.nodes.begin();
  auto of_to = to.slots.nodes.begin();
  for (std::uint32_t i = 0; i < to.node_count; ++i) {
    const bool slot_of_from = of_from != from.slots.nodes.end() && of_from->index == i;
    const bool slot_of_to = of_to != to.slots.nodes.end() && of_to->index == i;
    of_from += slot_of_from ? 1 : 0;
    of_to += slot_of_to ? 1 : 0;
    const bool is_kernel = to.nodes[i].type == cudaGraphNodeTypeKernel;
    Change how = change(from, to, i);
    if (slot_of_to) {
      if (!is_kernel || how == Change::kArguments) how = Change::kNone;
      by_update += cost(costs::kPatch, Change::kArguments);
      by_patches += how == Change::kNone ? cost(costs::kPatch, Change::kArguments) : 0;
    } else if (slot_of_from && how == Change::kNone) {
      how = is_kernel ? Change::kArguments : Change::kOther;
    }
    ++found.counts[static_cast<std::size_t>(how)];
    by_update += cost(costs::kUpdate, how);
    by_patches += cost(costs::kPatch, how);
    if (how == Change::kOther) patchable = false;
    if (how != Change::kNone && !slot_of_to) found.nodes.push_back({i, how});
  }
  found.by_update = !patchable || by_update < by_patches;
  found.cost = costs::kTakeOver + (found.by_update ? by_update : by_patches);
  if (found.by_update) found.nodes = {};
  return found;
}

}  // namespace graphcache
