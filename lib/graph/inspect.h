// What is looked at in a graph that was just captured, before it is kept.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "graph/template.h"

namespace graphcache {

// `frame`: the stack frame that called `fn`; null if the graph was not captured from one. Not ok if a launch of the graph would not do what a direct call of `fn`
// does, because of host memory that its copies use: a local variable of `fn`, which is gone by now, or pageable memory
// that two of them read from its begin, between which `fn` may have written it. A launch reads pageable memory before
// it returns (docs/semantics.md), which is when `fn` has ended.
//
// `slot_nodes`: those that hold values of slots, which are the caller's and not written by `fn`.
//
// Fills in the content's shape, and whether a node allocates memory that no node of the graph frees.
absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const std::vector<cudaGraphNode_t>& slot_nodes,
                     const void* frame, Content* content);

// Whether it is the host's memory that no runtime call has made or registered. Memory that a graph allocates counts as
// such until the graph is launched.
bool is_pageable(const void* memory);

bool is_on_this_threads_stack(const void* address);

}  // namespace graphcache
