// What is looked at in a graph that was just captured, before it is kept.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <vector>

namespace graphcache {

// `frame`: the stack frame that called `fn`. Not ok if a launch of the graph would not do what a direct call of `fn`
// does, because of host memory that its copies use: a local variable of `fn`, which is gone by now, or pageable memory
// that two of them read, between which `fn` may have written it. A launch reads pageable memory before it returns
// (docs/semantics.md), which is when `fn` has ended.
//
// `leaves_memory`: whether a node allocates memory that no node of the graph frees.
absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const void* frame, bool* leaves_memory);

bool is_on_this_threads_stack(const void* address);

}  // namespace graphcache
