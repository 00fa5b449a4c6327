#include "graph/node_names.h"

#include <absl/strings/str_cat.h>
#include <cuda.h>

#include <cstddef>
#include <iterator>

#include "cuda/driver.h"
#include "graph/recorder_calls.h"

namespace graphcache {

std::string name_of(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  const Driver& by = driver();
  const char* name = nullptr;
  const bool found = kernel.func != nullptr
                         ? by.function_name != nullptr && by.function_name(&name, kernel.func) == CUDA_SUCCESS
                         : by.kernel_name != nullptr && by.kernel_name(&name, kernel.kern) == CUDA_SUCCESS;
  return found ? readable(name) : kUnknownName;
}

namespace {

// Indexed by cudaGraphNodeType.
constexpr const char* kKinds[] = {"kernel",
                                  "copy",
                                  "set",
                                  "host function",
                                  "child graph",
                                  "empty node",
                                  "event wait",
                                  "event",
                                  "signal",
                                  "wait for a signal",
                                  "allocation",
                                  "free",
                                  "batch",
                                  "condition",
                                  "batch of copies",
                                  "node of a newer type"};
static_assert(cudaGraphNodeTypeEmpty == 5 && cudaGraphNodeTypeMemFree == 11);

}  // namespace

std::string kind_of(const NodeContent& node) {
  if (node.type == cudaGraphNodeTypeKernel) return absl::StrCat("kernel ", name_of(node.kernel));
  const auto type = static_cast<std::size_t>(node.type);
  return type < std::size(kKinds) ? kKinds[type] : absl::StrCat("node of type ", type);
}

}  // namespace graphcache
