#include "work.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "attributes.h"
#include "builtins.h"
#include "capture.h"
#include "device_nodes.h"
#include "memory.h"
#include "schedule.h"

namespace graphcache::hostrt {
namespace {

// During the lifetime of one of these, runtime calls by the work itself are refused.
class InsideWork {
 public:
  explicit InsideWork(Thread& thread) : thread_(thread) { thread_.in_work = true; }
  ~InsideWork() { thread_.in_work = false; }
  InsideWork(const InsideWork&) = delete;
  InsideWork& operator=(const InsideWork&) = delete;

 private:
  Thread& thread_;
};

// The number of bytes from the first to the last of a non-empty fill, gaps between rows included. No value if that
// overflows.
std::optional<std::size_t> extent_of(const FillParams& fill) {
  std::size_t row = 0, rows = 0, sum = 0;
  const bool wraps = __builtin_mul_overflow(fill.width, fill.element_bytes, &row) ||
                     __builtin_mul_overflow(fill.height - 1, fill.pitch, &rows) ||
                     __builtin_add_overflow(rows, row, &sum);
  return wraps ? std::nullopt : std::optional(sum);
}

template <typename Visit>
void for_each_row(const CopyParams& copy, Visit&& visit) {
  const Pitches &to = copy.destination_pitches, &from = copy.source_pitches;
  for (std::size_t slice = 0; slice < copy.depth; ++slice) {
    for (std::size_t row = 0; row < copy.height; ++row) {
      visit(static_cast<const char*>(copy.source) + (slice * from.slice + row) * from.row,
            static_cast<char*>(copy.destination) + (slice * to.slice + row) * to.row);
    }
  }
}

class Runner {
 public:
  explicit Runner(State& state) : state_(state) {}

  void operator()(const EmptyParams&) {}

  void operator()(const KernelParams& launch) {
    ++state_.kernels_run;
    set_dimensions(launch.grid, launch.block, cluster_size(launch));
    set_device(launch.device);
    const dim3 blocks = launch.blocks.value_or(launch.grid);
    uint3 block;
    for (block.z = 0; block.z < blocks.z; ++block.z) {
      for (block.y = 0; block.y < blocks.y; ++block.y) {
        for (block.x = 0; block.x < blocks.x; ++block.x) run_block(launch, block);
      }
    }
  }

  void operator()(const CopyParams& copy) {
    if (copy.is_of_device && loses_context(copy)) throw IllegalAddress{};
    for_each_row(copy, [&](const void* source, void* destination) {
      touch(copy.from, "the copy reads", source, copy.bytes);
      touch(copy.from, "the copy writes", destination, copy.bytes);
    });
    for_each_row(copy, [&](const void* source, void* destination) { std::memmove(destination, source, copy.bytes); });
  }

  void operator()(const FillParams& fill) {
    touch(fill.from, "the fill writes", fill.destination, *extent_of(fill));
    for (std::size_t row = 0; row < fill.height; ++row) {
      auto* at = static_cast<unsigned char*>(fill.destination) + row * fill.pitch;
      for (std::size_t i = 0; i < fill.width; ++i, at += fill.element_bytes) {
        std::memcpy(at, &fill.value, fill.element_bytes);  // the low bytes, because every CUDA host is little-endian
      }
    }
  }

  void operator()(const HostParams& host) { host.function(host.data); }

  void operator()(const ChildParams& child) { (*this)(GraphRun{child.program}); }

  void operator()(const ConditionalParams& node) {
    const bool is_loop = node.type == cudaGraphCondTypeWhile;
    do {
      if (!node.condition->is_set) {
        report_misuse(state_, state_.endings.here,
                      "nothing has set the condition of a node in this launch: the context may be lost");
      }
      const std::size_t body = chosen_body(node);
      if (body >= node.programs.size()) return;
      (*this)(GraphRun{node.programs[body]});
    } while (is_loop);
  }

  // The launch that enqueues the other nodes does this.
  void operator()(const EventRecordParams&) {}
  void operator()(const EventWaitParams&) {}

  void operator()(const AllocationParams& allocation) { scribble(allocation.block->address, allocation.block->bytes); }
  void operator()(const FreeParams& free) {
    if (free.block->freed.is_known()) {
      state_.quarantine.add(*free.block);
    } else {
      scribble(free.block->address, free.block->bytes);
    }
  }

  void operator()(const NodeParams& params) { std::visit(*this, params); }

  void operator()(const GraphRun& run) {
    if (run.launched.is_known()) state_.launched = run.launched;  // not known for a child graph or a body
    const Program* const around = std::exchange(state_.running, run.program.get());
    for (const std::uint32_t position : run.program->order) {
      const ProgramNode& node = run.program->nodes[position];
      if (node.enabled) std::visit(*this, params_to_run(*run.program, node));
    }
    state_.running = around;
  }

  void operator()(const StagedCopy& staged) {
    const std::byte* at = staged.bytes.data();
    for_each_row(staged.copy, [&](const void*, void* destination) {
      touch(staged.copy.from, "the copy writes", destination, staged.copy.bytes);
      std::memcpy(destination, at, staged.copy.bytes);
      at += staged.copy.bytes;
    });
  }

  void operator()(const LaunchStart& start) { run_start(state_, start); }
  void operator()(const ConditionStart& start) {
    for (const auto& condition : start.conditions) {
      condition->value = condition->assigns_default ? condition->default_value : 0;
      condition->is_set = condition->assigns_default;
    }
  }

  // Marks and waits do nothing when executed.
  void operator()(const Mark&) {}
  void operator()(const Wait&) {}

 private:
  // Whether its memory was given out again, or is another kind of memory or of another device now, where such a copy
  // must not have that.
  bool loses_context(const CopyParams& copy) const {
    const bool is_of_device = *copy.is_of_device;
    const auto is_elsewhere = [&](const void* end, int device) {
      const std::optional<int> now = device_of_known(state_, end);
      return now && *now != device && memory_kind(state_, end) == MemoryKind::kDevice;
    };
    if (copy.devices &&
        (is_elsewhere(copy.destination, copy.devices->first) || is_elsewhere(copy.source, copy.devices->second))) {
      return true;
    }
    if (is_of_device && (is_pageable(state_, copy.destination) || is_pageable(state_, copy.source))) return true;
    return (!is_of_device || copy.is_far) &&
           (is_other(state_, copy.destination, copy.destination_id) || is_other(state_, copy.source, copy.source_id));
  }

  void touch(const Place& from, const char* does_what, const void* address, std::size_t bytes) {
    if (!may_touch(state_, from, does_what, address, bytes)) throw IllegalAddress{};
  }

  static void run_block(const KernelParams& launch, const uint3& block) {
    const Kernel& kernel = *launch.kernel;
    uint3 thread;
    for (thread.z = 0; thread.z < launch.block.z; ++thread.z) {
      for (thread.y = 0; thread.y < launch.block.y; ++thread.y) {
        for (thread.x = 0; thread.x < launch.block.x; ++thread.x) {
          set_indices(block, thread);
          kernel.invoker(kernel.function, launch.arguments.pointers());
        }
      }
    }
  }

  State& state_;
};

template <typename Work>
cudaError_t run(State& state, const Work& work) {
  const InsideWork inside(this_thread());
  if constexpr (std::is_same_v<Work, Operation>) state.launched = {};
  try {
    std::visit(Runner(state), work);
  } catch (const IllegalAddress&) {
    return cudaErrorIllegalAddress;
  } catch (const MisalignedAddress&) {
    return cudaErrorMisalignedAddress;
  } catch (...) {
    return cudaErrorLaunchFailure;  // the closest error to that of a kernel that faults
  }
  return cudaSuccess;
}

// "For transfers from pageable host memory to device memory ... the function will return once the pageable buffer has
// been copied to the staging memory", and to pageable memory "only once the copy has completed" (the runtime's manual,
// API synchronization behavior). Behind a held stream the caller does not wait for the latter. A synchronous copy from
// pageable memory begins with "a stream sync".
void enqueue_copy(const Call& call, Stream& stream, const CopyParams& copy) {
  State& state = call.state;
  if (is_pageable(state, copy.source)) {
    const bool is_synchronous = call.function == Function::kMemcpy || call.function == Function::kMemcpy2D ||
                                call.function == Function::kMemcpy3D;
    if (is_synchronous) finish(state, stream);
    StagedCopy staged{copy, {}};
    for_each_row(copy, [&](const void* source, void*) {
      const auto* const first = static_cast<const std::byte*>(source);
      staged.bytes.insert(staged.bytes.end(), first, first + copy.bytes);
    });
    enqueue(state, stream, std::move(staged));
  } else {
    enqueue(state, stream, NodeParams(copy));
  }
  if (state.deferred && is_pageable(state, copy.destination)) finish(state, stream);
}

}  // namespace

cudaError_t execute(State& state, const Operation& operation) { return run(state, operation); }

cudaError_t execute(State& state, const NodeParams& params) { return run(state, params); }

cudaError_t resolve_kernel(const Call& call, const void* function, const Kernel** kernel) {
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;
  *kernel = find_kernel(function);
  if (*kernel != nullptr) return cudaSuccess;
  return call.misuse(CUDART_VERSION > 12040 ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction,
                     name_of_function(function) + " is not registered by GRAPHCACHE_HOST_KERNEL");
}

cudaError_t check_shape(const dim3& grid, const dim3& block, std::size_t shared_bytes, std::size_t max_shared_bytes) {
  const bool grid_fits =
      grid.x >= 1 && grid.x <= kMaxGridX && grid.y >= 1 && grid.y <= kMaxGridYZ && grid.z >= 1 && grid.z <= kMaxGridYZ;
  const bool block_fits = block.x >= 1 && block.x <= kMaxThreadsPerBlock && block.y >= 1 &&
                          block.y <= kMaxThreadsPerBlock && block.z >= 1 && block.z <= kMaxBlockZ &&
                          block.x * block.y * block.z <= kMaxThreadsPerBlock;
  return grid_fits && block_fits && shared_bytes <= max_shared_bytes ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t check_copy(const void* destination, const void* source, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto is_wrong = [](const void* end, bool of_device) {
    return end == nullptr || (of_device && is_pageable(state(), end));
  };
  return is_wrong(destination, to_device) || is_wrong(source, from_device) ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t check_rows(const CopyParams& copy) {
  if (copy.is_flat()) return cudaSuccess;
  for (const Pitches& pitches : {copy.destination_pitches, copy.source_pitches}) {
    if (pitches.row < copy.bytes || pitches.row > kMaxPitch) return cudaErrorInvalidPitchValue;
    if (copy.depth > 1 && pitches.slice < copy.height) return cudaErrorInvalidPitchValue;
  }
  return cudaSuccess;
}

cudaError_t check_pitches(const CopyParams& copy, bool is_box) {
  for (const Pitches& pitches : {copy.destination_pitches, copy.source_pitches}) {
    if (copy.is_flat() && is_box && pitches.row == 0) continue;  // As the getter gives it.
    const bool slice_fits = !is_box || pitches.slice == 0 || pitches.slice >= copy.height;
    if (pitches.row < copy.bytes || !slice_fits) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

bool has_extent(const FillParams& fill) {
  const bool element_fits = (fill.element_bytes == 1 || fill.element_bytes == 2 || fill.element_bytes == 4) &&
                            reinterpret_cast<std::uintptr_t>(fill.destination) % fill.element_bytes == 0;
  const bool rows_fit = fill.height <= 1 || (fill.pitch >= fill.width * fill.element_bytes && element_fits &&
                                             fill.pitch % fill.element_bytes == 0);
  return element_fits && rows_fit && fill.width != 0 && fill.height != 0 && extent_of(fill).has_value();
}

cudaError_t check_fill(const FillParams& fill) {
  return has_extent(fill) && !is_pageable(state(), fill.destination) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t submit(const Call& call, Stream& stream, NodeParams params) {
  Capture* capture = nullptr;
  if (const cudaError_t error = admit_work(call.state, stream, &capture); error != cudaSuccess) return error;
  set_place(params, call.state.endings.here);
  if (capture != nullptr) {
    add_captured_node(call.state, stream, std::move(params));
    return cudaSuccess;
  }
  note_stray(call, stream);
  if (const auto* copy = std::get_if<CopyParams>(&params); copy != nullptr && is_lazy(call.state)) {
    enqueue_copy(call, stream, *copy);
  } else {
    enqueue(call.state, stream, std::move(params));
  }
  return cudaSuccess;
}

}  // namespace graphcache::hostrt
