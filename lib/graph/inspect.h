// Checks a graph before it is kept.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "graph/template.h"

namespace graphcache {

// Fills in the content's shape, how many conditional nodes it has, and whether a node allocates memory that no node of
// the graph frees. Call this once the content has its slots and its kept memory.
absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, Content* content);
// The same for a captured graph. Every launch uses the host memory that its nodes point to, although `fn` has returned.
// So this returns an error if that memory may be gone: if a copy has pageable memory at an end that is neither kept nor
// a slot, or if the data of a host function is on a stack, or in pageable memory that is neither kept nor static data.
// For functions outside of the module of `fn`, which has the address `place`, only a stack counts.
absl::Status inspect(const std::vector<cudaGraphNode_t>& nodes, const void* place, Content* content);

// Sets `pageable` to whether this is host memory that no runtime call has allocated or registered. Memory that a graph
// allocates counts as such, unless a launch has allocated it.
CallResult find_pageable(const void* memory, bool* pageable);

// The stack of this thread. Empty if it cannot be determined. For the main thread, the query reads a file.
AddressRange stack_of_this_thread();
bool is_on_this_threads_stack(const void* address);
// Whether an address is on the stack that the caller runs on. The bounds of a fiber's stack are not known, so there all
// that is near counts.
bool is_on_a_stack(const void* address);

}  // namespace graphcache
