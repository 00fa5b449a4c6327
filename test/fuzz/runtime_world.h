// The state of a fuzzed program of runtime calls: the objects that it has made, and the arguments that it chooses by
// the fuzzer's bytes. It avoids only what is undefined on the host as well: addresses that belong to no memory, and
// arrays shorter than their count.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "graphcache/hostrt.h"
#include "input.h"
#include "kernels.h"

namespace graphcache::test {

inline void calls_the_runtime(int* out) { *out = static_cast<int>(cudaDeviceSynchronize()); }
inline void throws(int* out) {
  *out = 1;
  throw std::runtime_error("from a kernel");
}
inline void no_kernel(int* out) { *out = 2; }

GRAPHCACHE_HOST_KERNEL(calls_the_runtime)
GRAPHCACHE_HOST_KERNEL(throws)

inline void increment(void* data) { ++*static_cast<int*>(data); }
inline void synchronize(void* data) { *static_cast<int*>(data) = static_cast<int>(cudaDeviceSynchronize()); }

inline constexpr int kArenaInts = 4096;  // device memory that lives as long as the program
inline constexpr int kReachInts = 1024;  // the part of it that one piece of work accesses at most
inline constexpr std::size_t kMaxHandles = 64;

// Handles or addresses of one kind, including destroyed ones.
template <class T>
class Kind {
 public:
  // Begins with handles that were never created.
  explicit Kind(std::vector<T> foreign) : made_(std::move(foreign)) {}

  // Mostly the newest, sometimes any, alive or not.
  T any(Input& in) const {
    const std::uint8_t which = in.byte();
    return which < 96 ? made_.back() : made_[which % made_.size()];
  }
  // The place for a call to write a new one; sometimes null.
  T* slot(Input& in) { return in.chance(8) ? nullptr : &pending_; }
  void settle() {
    if (pending_ != nullptr) add(pending_);
    pending_ = nullptr;
  }
  void add(T one) {
    if (made_.size() < kMaxHandles) made_.push_back(one);
  }

 private:
  std::vector<T> made_;
  T pending_ = nullptr;
};

// One program and its hostrt, freshly reset, with two devices and some device memory for all work.
class World {
 public:
  explicit World(Input& input) : in(input) {
    hostrt::reset();
    hostrt::set_device_count(2);
    if (in.chance(96)) hostrt::defer(in.byte());
    cudaMalloc(reinterpret_cast<void**>(&arena_), kArenaInts * sizeof(int));
    cudaMemset(arena_, 0, kArenaInts * sizeof(int));
  }
  ~World() { hostrt::reset(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Call this after each operation.
  void settle() {
    streams.settle();
    events.settle();
    graphs.settle();
    nodes.settle();
    executables.settle();
    user_objects.settle();
    blocks.settle();
    host_blocks.settle();
  }

  cudaStream_t stream() { return streams.any(in); }
  cudaStream_t* new_stream() { return streams.slot(in); }
  cudaEvent_t event() { return events.any(in); }
  cudaEvent_t* new_event() { return events.slot(in); }
  cudaGraph_t graph() { return graphs.any(in); }
  cudaGraph_t* new_graph() { return graphs.slot(in); }
  cudaGraphNode_t node() { return nodes.any(in); }
  cudaGraphNode_t* new_node() { return nodes.slot(in); }
  cudaGraphExec_t executable() { return executables.any(in); }
  cudaGraphExec_t* new_executable() { return executables.slot(in); }

  cudaUserObject_t user_object() { return user_objects.any(in); }
  cudaUserObject_t* new_user_object() { return user_objects.slot(in); }

  // Up to three nodes, as dependencies.
  struct Nodes {
    std::array<cudaGraphNode_t, 3> nodes;
    std::size_t count;
  };
  Nodes some_nodes() {
    Nodes some{{}, in.below(4)};
    for (std::size_t i = 0; i < some.count; ++i) some.nodes[i] = node();
    return some;
  }

  // A place for results that are ignored.
  template <class T>
  T* out() {
    static_assert(sizeof(T) <= sizeof scratch_);
    return in.chance(8) ? nullptr : reinterpret_cast<T*>(scratch_);
  }

  int device() { return static_cast<int>(in.below(4)) - 1; }  // there are two
  unsigned flags() { return static_cast<unsigned>(in.below(4)); }
  std::size_t size() {
    static constexpr std::size_t kSizes[] = {0, 1, 4096, 1 << 20, SIZE_MAX / 2, SIZE_MAX};
    return in.pick(kSizes);
  }
  int* arena() { return arena_; }
  int* address() { return in.chance(8) ? nullptr : arena_ + in.take<std::uint16_t>() % (kArenaInts - kReachInts); }
  std::size_t bytes() {  // mostly within reach, because anything else ends the context
    static constexpr std::size_t kBeyond[] = {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 62};
    return in.chance(2) ? in.pick(kBeyond) : in.take<std::uint16_t>() % (kReachInts * sizeof(int));
  }
  unsigned extent() {  // of a grid or a block; mostly one that runs quickly
    static constexpr unsigned kExtents[] = {1, 1, 1, 1, 1, 2, 3, 0, 0x80000000u, 0xffffffffu};
    return in.pick(kExtents);
  }
  dim3 shape() { return dim3(extent(), extent(), extent()); }
  cudaMemcpyKind copy_kind() { return static_cast<cudaMemcpyKind>(in.below(8)); }

  // A kernel with arguments that stay within the arena.
  struct Launch {
    const void* function;
    int* out;
    int n, a, b;
    void* pointers[4];
    bool has_arguments;
    void** arguments() { return has_arguments ? pointers : nullptr; }
  };
  // The returned launch belongs to the world, until the next one.
  Launch& launch() {
    static const void* const kFunctions[] = {reinterpret_cast<const void*>(blend),
                                             reinterpret_cast<const void*>(blend_otherwise),
                                             reinterpret_cast<const void*>(do_nothing),
                                             reinterpret_cast<const void*>(record_launch),
                                             reinterpret_cast<const void*>(count_threads),
                                             reinterpret_cast<const void*>(calls_the_runtime),
                                             reinterpret_cast<const void*>(throws),
                                             reinterpret_cast<const void*>(no_kernel),
                                             nullptr};
    launch_.function = in.pick(kFunctions);
    launch_.out = address();
    if (launch_.out == nullptr) launch_.out = arena_;  // a kernel with a null pointer would fault on the host as well
    launch_.n = in.byte();
    launch_.a = in.byte();
    launch_.b = in.byte();
    launch_.pointers[0] = &launch_.out;
    launch_.pointers[1] = &launch_.n;
    launch_.pointers[2] = &launch_.a;
    launch_.pointers[3] = &launch_.b;
    launch_.has_arguments = !in.chance(8);
    return launch_;
  }
  const cudaKernelNodeParams* kernel_params() {
    launch();
    cudaKernelNodeParams& params = kernel_params_ = {};
    params.func = const_cast<void*>(launch_.function);
    params.gridDim = shape();
    params.blockDim = shape();
    params.sharedMemBytes = in.chance(8) ? 1u << 30 : in.byte();
    params.kernelParams = launch_.arguments();
    return in.chance(4) ? nullptr : &params;
  }
  const cudaMemsetParams* memset_params() {
    cudaMemsetParams& params = memset_params_ = {};
    params.dst = address();
    params.value = in.byte();
    params.elementSize = static_cast<unsigned>(in.below(6));
    params.width = in.chance(2) ? std::size_t{1} << 62 : in.below(65);
    params.height = in.chance(128) ? 1 : in.below(8);
    params.pitch = 4 * in.below(65);
    return in.chance(4) ? nullptr : &params;
  }
  const cudaMemcpy3DParms* memcpy_params() {
    cudaMemcpy3DParms& params = memcpy_params_ = {};
    params.srcPtr.ptr = address();
    params.dstPtr.ptr = address();
    params.srcPos.x = in.below(16);
    params.dstPos.y = in.chance(8) ? 1 : 0;
    params.extent.width = in.below(256);
    params.extent.height = in.chance(16) ? in.below(8) : 1;
    params.extent.depth = in.chance(16) ? in.below(3) : 1;
    params.kind = copy_kind();
    return in.chance(4) ? nullptr : &params;
  }
  cudaHostFn_t host_function() {
    static constexpr cudaHostFn_t kFunctions[] = {increment, synchronize, nullptr};
    return in.pick(kFunctions);
  }
  cudaMemAllocNodeParams* alloc_params() {
    cudaMemAllocNodeParams& params = alloc_params_ = {};
    params.poolProps.allocType = in.chance(16) ? cudaMemAllocationTypeInvalid : cudaMemAllocationTypePinned;
    params.poolProps.location.type = in.chance(16) ? cudaMemLocationTypeInvalid : cudaMemLocationTypeDevice;
    params.poolProps.location.id = device();
    params.bytesize = size();
    return in.chance(4) ? nullptr : &params;
  }
  const cudaHostNodeParams* host_params() {
    host_params_ = {host_function(), arena_};
    return in.chance(4) ? nullptr : &host_params_;
  }

  Input& in;
  Kind<cudaStream_t> streams{{nullptr, cudaStreamLegacy, cudaStreamPerThread, foreign<cudaStream_t>()}};
  Kind<cudaEvent_t> events{{nullptr, foreign<cudaEvent_t>()}};
  Kind<cudaGraph_t> graphs{{nullptr, foreign<cudaGraph_t>()}};
  Kind<cudaGraphNode_t> nodes{{nullptr, foreign<cudaGraphNode_t>()}};
  Kind<cudaGraphExec_t> executables{{nullptr, foreign<cudaGraphExec_t>()}};
  Kind<cudaUserObject_t> user_objects{{nullptr, foreign<cudaUserObject_t>()}};
  Kind<void*> blocks{{nullptr}};       // device memory
  Kind<void*> host_blocks{{nullptr}};  // pinned memory

 private:
  template <class T>
  static T foreign() {
    return reinterpret_cast<T>(std::uintptr_t{0x10});
  }

  int* arena_ = nullptr;
  Launch launch_;
  cudaKernelNodeParams kernel_params_;
  cudaMemsetParams memset_params_;
  cudaMemcpy3DParms memcpy_params_;
  cudaHostNodeParams host_params_;
  cudaMemAllocNodeParams alloc_params_;
  alignas(16) unsigned char scratch_[4096];
};

}  // namespace graphcache::test
