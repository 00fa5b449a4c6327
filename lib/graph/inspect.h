// Checks a graph before it is kept, and says what addresses point to.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "graph/template.h"

namespace graphcache {

// Fills in what the content says of the graph's nodes: their number and shape, how many are conditional, and whether
// one allocates memory that none of them frees. Orders the sinks, so that updates pair nodes by index. Call this once
// the content has its slots and its kept memory.
//
// `place` is null for a graph that the program made, else an address in the module of the captured `fn`. Every launch
// uses the host memory that captured nodes point to, although `fn` has returned. So this returns an error if that
// memory may be gone. Such is pageable memory of a copy, unless it is kept or that end is a slot. Such is also the data
// of a host function on a stack, or in pageable memory that is neither kept nor static data. For functions outside of
// that module, only a stack counts.
absl::Status inspect(Template& graph, const void* place, Content* content);

// What the runtime says of the memory at an address. If the query fails, that is managed memory of the current device,
// which is treated most carefully.
struct PointerAttributes : cudaPointerAttributes {
  explicit PointerAttributes(const void* memory);
  // Whether this is host memory that no runtime call has allocated or registered. Memory that a graph allocates counts
  // as such, unless a launch has allocated it.
  bool is_pageable() const { return type == cudaMemoryTypeUnregistered; }

  CallResult query;
};

// The device of device or managed memory, or kHostMemory or kPageableMemory.
int device_of(const PointerAttributes& memory);

// The stack of this thread, asked for once, because for the main thread the query reads a file. Empty if it cannot be
// determined.
const AddressRange& stack_of_this_thread();
bool is_on_this_threads_stack(const void* address);
// Whether an address is on the stack that the caller runs on. The bounds of a fiber's stack are not known, so there all
// that is near counts.
bool is_on_a_stack(const void* address);

}  // namespace graphcache
