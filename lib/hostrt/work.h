// Checking and executing work. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_WORK_H_
#define GRAPHCACHE_LIB_HOSTRT_WORK_H_

#include "state.h"

namespace graphcache::hostrt {

inline constexpr unsigned kMaxThreadsPerBlock = 1024;
inline constexpr unsigned kMaxBlockZ = 64;
inline constexpr unsigned kMaxGridX = 2147483647;
inline constexpr unsigned kMaxGridYZ = 65535;
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;                // what a kernel may opt in to, at most
inline constexpr std::size_t kDeviceMemoryBytes = std::size_t{16} << 30;  // The memory that each device reports.

// The kernel of a launch, with the errors of the real runtime: no function is cudaErrorInvalidDeviceFunction, one that
// is not registered cudaErrorInvalidResourceHandle (it might have been the handle of a library's kernel).
cudaError_t resolve_kernel(const Call& call, const void* function, const Kernel** kernel);

// Dimensions and shared memory. Driver 580 answers cudaErrorInvalidValue to everything that is out of range.
cudaError_t check_shape(const dim3& grid, const dim3& block, std::size_t shared_bytes);

// Sizes, null pointers and kind of a copy that is not empty.
cudaError_t check_copy(const void* destination, const void* source, cudaMemcpyKind kind);
cudaError_t check_fill(const FillParams& fill);

// What work throws that touches memory that is not its own.
struct IllegalAddress {};

// Runs work now, on this thread. schedule.h decides when.
cudaError_t execute(State& state, const Operation& operation);
cudaError_t execute(State& state, const NodeParams& params);

// Pageable is what the runtime does not know. Freed memory stays the device's for as long as it is in quarantine.
MemoryKind memory_kind(const State& state, const void* address);
bool is_pageable(const State& state, const void* address);

// enqueue() or a node of the capture, whatever the stream is in.
cudaError_t submit(const Call& call, Stream& stream, NodeParams params);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_WORK_H_
