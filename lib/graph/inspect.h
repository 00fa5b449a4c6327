// Checks a graph that was just captured, before it is kept.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "graph/template.h"

namespace graphcache {

// Returns an error if a launch of the graph would use host memory in another way than a direct call of `fn`. A copy may
// use a local variable of `fn`, which no longer exists. Two copies may read pageable memory from the same begin, which
// `fn` may have written in between. A launch reads pageable memory before it returns (docs/semantics.md), when `fn` has
// already ended.
//
// `frame` is the stack frame that called `fn`, or null if the graph was not captured from one. `slot_nodes` hold values
// of slots, which belong to the caller and are not written by `fn`.
//
// Fills in the content's shape, and whether a node allocates memory that no node of the graph frees.
absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const std::vector<cudaGraphNode_t>& slot_nodes,
                     const void* frame, Content* content);

// Whether this is host memory that no runtime call has allocated or registered. Memory that a graph allocates counts as
// such until the graph is launched.
bool is_pageable(const void* memory);

bool is_on_this_threads_stack(const void* address);

}  // namespace graphcache
