// What differs between versions of PyTorch. For graphcache_torch_state.h, not for users.
//
//   2.10  MemPool is in another namespace. Of the pools that memory may come from, the allocator takes the one that was
//         named last. Before, it took the first. The tables of workspaces have a mutex; 2.8 does not export that of
//         cuBLASLt.
//   2.11  A snapshot of the allocator may leave out its history.
//   2.12  A generator has values on the device for each capture, by the capture's id. Before, it has one pair of values
//         for all graphs, and captures with all graphs or none.
//   2.13  A program tells the allocator of its captures. Before, the allocator counts the use of a pool as a capture.
//
// PyTorch's own graphs register themselves for the id of their capture, and nobody else can. So Generators sets the
// members of PyTorch's states, which are public. Their member functions are not exported.
#pragma once

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/fill.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/api/include/torch/version.h>

#define GRAPHCACHE_TORCH_VERSION (100 * TORCH_VERSION_MAJOR + TORCH_VERSION_MINOR)

#if GRAPHCACHE_TORCH_VERSION >= 210
#include <ATen/cuda/MemPool.h>
#endif
#if GRAPHCACHE_TORCH_VERSION >= 212
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#endif

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <utility>
#include <vector>

namespace graphcache {
namespace torch_detail {

#if GRAPHCACHE_TORCH_VERSION >= 210
using at::cuda::MemPool;
#else
using c10::cuda::MemPool;
#endif

using GeneratorState = c10::intrusive_ptr<at::CUDAGeneratorState>;

// What a launch needs of a generator.
struct Drawn {
  at::TensorBase seed_at, offset_at;  // what the graph reads
  std::uint64_t seed, offset;

  // Sets the values for a launch on the current stream. It may run Python code, if a TorchDispatchMode is active.
  void fill() const {
    at::Tensor(seed_at).fill_(static_cast<std::int64_t>(seed));
    at::Tensor(offset_at).fill_(static_cast<std::int64_t>(offset));
  }
};

using PoolId = decltype(std::declval<MemPool&>().id());

inline auto segments_of(PoolId pool) {
#if GRAPHCACHE_TORCH_VERSION >= 211
  return c10::cuda::CUDACachingAllocator::snapshot(pool, /*include_traces=*/false).segments;
#else
  return c10::cuda::CUDACachingAllocator::snapshot(pool).segments;
#endif
}

// Calls f(number, map) with each of PyTorch's tables of workspaces.
#if GRAPHCACHE_TORCH_VERSION >= 210
using WorkspaceMap = decltype(at::cuda::WorkspaceMapWithMutex::map);
template <class F>
void for_each_map(const F& f) {
  std::size_t number = 0;
  for (auto* const table :
       {&at::cuda::cublas_handle_stream_to_workspace(), &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    const std::unique_lock lock(table->mutex);
    f(number++, table->map);
  }
}
#else
using WorkspaceMap = std::remove_reference_t<decltype(at::cuda::cublas_handle_stream_to_workspace())>;
template <class F>
void for_each_map(const F& f) {
  f(0, at::cuda::cublas_handle_stream_to_workspace());
#if GRAPHCACHE_TORCH_VERSION >= 209
  f(1, at::cuda::cublaslt_handle_stream_to_workspace());
#endif
}
#endif

// Between these two calls, the allocator makes no calls that would break a capture.
inline void begin_allocator_capture([[maybe_unused]] c10::DeviceIndex device) {
#if GRAPHCACHE_TORCH_VERSION >= 213
  c10::cuda::CUDACachingAllocator::markCaptureBegin(device);
#endif
}
inline void end_allocator_capture([[maybe_unused]] c10::DeviceIndex device) {
#if GRAPHCACHE_TORCH_VERSION >= 213
  c10::cuda::CUDACachingAllocator::markCaptureEnd(device);
#endif
}

// Draws, in both families of versions: that a graph draws from a generator, and how much each launch advances it.
// Generators: the generators of a cache, of which one capture at a time draws.

#if GRAPHCACHE_TORCH_VERSION < 212

// Gives access to protected members of CUDAGraph: the generators that it was captured with, and how much a replay
// advances each.
struct Graph : at::cuda::CUDAGraph {
  static auto& increments(at::cuda::CUDAGraph& graph) { return graph.*&Graph::captured_generator_states_; }
};

struct Draws {
  GeneratorState generator;
  at::TensorBase seed, offset;  // what the graph reads
  std::uint64_t increment;

  Draws(const GeneratorState& drawn_from, std::uint64_t drawn)
      : generator(drawn_from),
        seed(drawn_from->seed_extragraph_),
        offset(drawn_from->offset_extragraph_),
        increment(drawn) {}

  // Advances the generator by a launch, and returns what a direct call would see.
  Drawn advance() const {
    const std::uint64_t now = generator->philox_offset_per_thread_;
    generator->philox_offset_per_thread_ += increment;
    return {seed, offset, generator->seed_, now};
  }
};

class Generators {
 public:
  static constexpr bool kEntersCaptures = false;

  void add(const at::Generator& generator) { registrar_.register_generator_state(generator); }

  void begin_capture() {
    for (const auto& [generator, unused] : Graph::increments(registrar_)) {
      generator->capturing_ = true;
      generator->offset_intragraph_ = 0;
    }
  }
  void enter_capture(unsigned long long) {}

  // A generator's offset after a capture is what each replay of the graph adds.
  void end_capture(std::vector<Draws>* draws) {
    for (const auto& [generator, unused] : Graph::increments(registrar_)) {
      if (!generator->capturing_) continue;
      generator->capturing_ = false;
      if (generator->offset_intragraph_ == 0) continue;
      draws->emplace_back(generator, generator->offset_intragraph_);
    }
  }

  // What a graph draws that PyTorch has captured.
  static std::vector<Draws> of(at::cuda::CUDAGraph& graph) {
    std::vector<Draws> draws;
    for (const auto& [generator, increment] : Graph::increments(graph)) {
      if (increment != 0) draws.emplace_back(generator, increment);
    }
    return draws;
  }

 private:
  Graph registrar_;  // captures nothing; provides its generators with device memory
};

#else

// Gives access to protected members of CUDAGraph: the generators that it was captured with, how much a replay advances
// each, and the id of its capture.
struct Graph : at::cuda::CUDAGraph {
  static auto& increments(at::cuda::CUDAGraph& graph) { return graph.*&Graph::captured_generator_states_; }
  static auto id(at::cuda::CUDAGraph& graph) { return graph.*&Graph::capture_id_; }
};

// Gives access to a private member of CUDAGeneratorImpl, which an explicit instantiation may name. From 2.14 on, no
// function hands it out.
inline GeneratorState& state_of(at::CUDAGeneratorImpl& generator);
template <auto kMember>
struct StateOf {
  friend GeneratorState& state_of(at::CUDAGeneratorImpl& generator) { return generator.*kMember; }
};
template struct StateOf<&at::CUDAGeneratorImpl::state_>;

using CaptureState = c10::intrusive_ptr<at::CUDAGeneratorCaptureState>;

// Removes the generator's state of a capture, and returns it; null if there is none.
inline CaptureState take_capture_state(at::CUDAGeneratorState& generator, unsigned long long id) {
  const std::lock_guard lock(generator.capture_states_mutex_);
  const auto found = generator.capture_states_.find(id);
  if (found == generator.capture_states_.end()) return {};
  CaptureState taken = std::move(found->second);
  generator.capture_states_.erase(found);
  return taken;
}

struct Draws {
  GeneratorState generator;
  CaptureState values;  // has the tensors that the graph reads
  std::uint64_t increment;

  // Advances the generator by a launch, and returns what a direct call would see.
  Drawn advance() const {
    const std::lock_guard lock(generator->capture_states_mutex_);
    const std::uint64_t now = generator->philox_offset_per_thread_;
    generator->philox_offset_per_thread_ += increment;
    return {values->rng_state_seed_extragraph_, values->rng_state_offset_extragraph_, generator->seed_, now};
  }
};

class Generators {
 public:
  static constexpr bool kEntersCaptures = true;

  // All captures of a cache read the same two tensors of a generator.
  void add(const at::Generator& generator) {
    TORCH_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
                "graphcache: the current stream is capturing: make caches and register generators before");
    const GeneratorState state = state_of(*at::check_generator<at::CUDAGeneratorImpl>(generator));
    for (const Registered& other : registered_) {
      if (other.generator == state) return;
    }
    const c10::InferenceMode ordinary(false);  // tensors made in inference mode cannot be filled outside it
    const auto options = at::TensorOptions().device(generator.device()).dtype(at::kLong);
    registered_.push_back({state, at::empty({1}, options), at::empty({1}, options)});
  }

  void begin_capture() {}

  // PyTorch finds a generator's state by the id of the capture, which is known once the capture has begun.
  void enter_capture(unsigned long long id) {
    if (id_ != 0 || id == 0) return;  // a run inside the captured one, or a capture that is broken
    id_ = id;
    for (const Registered& one : registered_) {
      CaptureState state = c10::make_intrusive<at::CUDAGeneratorCaptureState>();
      state->rng_state_seed_extragraph_ = one.seed;
      state->rng_state_offset_extragraph_ = one.offset;
      const std::lock_guard lock(one.generator->capture_states_mutex_);
      one.generator->capture_states_[id] = std::move(state);
    }
  }

  // A generator's offset after a capture is what each replay of the graph adds.
  void end_capture(std::vector<Draws>* draws) {
    const unsigned long long id = std::exchange(id_, 0);
    if (id == 0) return;
    for (const Registered& one : registered_) {
      CaptureState state = take_capture_state(*one.generator, id);
      if (state == nullptr || state->offset_intragraph_ == 0) continue;
      const std::uint64_t increment = state->offset_intragraph_;
      draws->push_back({one.generator, std::move(state), increment});
    }
  }

  // What a graph draws that PyTorch has captured.
  static std::vector<Draws> of(at::cuda::CUDAGraph& graph) {
    std::vector<Draws> draws;
    for (const auto& [generator, increment] : Graph::increments(graph)) {
      if (increment == 0) continue;
      const std::lock_guard lock(generator->capture_states_mutex_);
      draws.push_back({generator, generator->capture_states_.at(Graph::id(graph)), increment});
    }
    return draws;
  }

 private:
  struct Registered {
    GeneratorState generator;
    at::TensorBase seed, offset;
  };
  std::vector<Registered> registered_;
  unsigned long long id_ = 0;  // id of the current capture; 0 outside
};

#endif

}  // namespace torch_detail
}  // namespace graphcache
