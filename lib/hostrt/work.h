// Checking and executing work. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_WORK_H_
#define GRAPHCACHE_LIB_HOSTRT_WORK_H_

#include "state.h"

namespace graphcache::hostrt {

inline constexpr unsigned kMaxThreadsPerBlock = 1024;
inline constexpr unsigned kMaxBlockZ = 64;
inline constexpr unsigned kMaxGridX = 2147483647;
inline constexpr unsigned kMaxGridYZ = 65535;
inline constexpr std::size_t kMaxPitch = 2147483647;
// Dynamic shared memory of a block: without cudaFuncSetAttribute, and the largest size that a kernel may opt in to.
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;
inline constexpr std::size_t kDeviceMemoryBytes = std::size_t{16} << 30;  // memory reported for each device

// The kernel of a launch. As in the real runtime, a null function gives cudaErrorInvalidDeviceFunction, and an
// unregistered one cudaErrorInvalidResourceHandle, because it could be a library's kernel handle.
cudaError_t resolve_kernel(const Call& call, const void* function, const Kernel** kernel);

// Checks dimensions and shared memory. Driver 580 returns cudaErrorInvalidValue for anything out of range.
cudaError_t check_shape(const dim3& grid, const dim3& block, std::size_t shared_bytes, std::size_t max_shared_bytes);

// Checks the sizes, pointers and kind of a copy of at least one byte.
cudaError_t check_copy(const void* destination, const void* source, cudaMemcpyKind kind);
// Rows and slices may not overlap. The runtime checks those of which there are several, before all else.
cudaError_t check_rows(const CopyParams& copy);
// The driver checks all, after the rest. Only boxes have slices.
cudaError_t check_pitches(const CopyParams& copy, bool is_box);
cudaError_t check_fill(const FillParams& fill);
bool has_extent(const FillParams& fill);

// Thrown by work that accesses memory that is not its own.
struct IllegalAddress {};
// Thrown by device code that accesses memory with too small an alignment.
struct MisalignedAddress {};

// Runs work now, on this thread. schedule.h decides when this is called.
cudaError_t execute(State& state, const Operation& operation);
cudaError_t execute(State& state, const NodeParams& params);

// Memory that the runtime does not know is pageable. Freed memory counts as device memory while it is in the
// quarantine.
MemoryKind memory_kind(const State& state, const void* address);
bool is_pageable(const State& state, const void* address);
bool is_freed(const State& state, const void* address);  // As long as the quarantine has it.

// The id of the allocation of cudaMalloc, cudaMallocManaged or pinned memory that has this address, kPageableId if it
// is pageable, or 0.
inline constexpr unsigned long long kPageableId = ~0ull;
unsigned long long allocation_id(const State& state, const void* address);
// Whether other memory has the address now.
bool is_other(const State& state, const void* address, unsigned long long id);

// Calls enqueue(), or adds a node if the stream is capturing.
cudaError_t submit(const Call& call, Stream& stream, NodeParams params);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_WORK_H_
