// The recorder: what `fn` enqueues its work through where values change from run to run.
//
//   [&](graphcache::Recorder& rec, graphcache::Slot<float> lr) {
//     forward<<<grid, block, 0, rec.stream()>>>(weights, hidden);     // recorded as it stands
//     rec.launch(sgd, {grid, block}, weights, gradient, lr);          // lr follows each run
//   }
//
// What is enqueued on rec.stream() by other means, libraries included, is recorded with the values it has now. A call
// of the recorder that is given slots keeps the node that it records, and later runs patch their values into it. When
// `fn` is run uncaptured, the same calls enqueue directly.
//
// A recorder belongs to one call of `fn`, on `fn`'s thread. Its calls return nothing: the first failure is kept, later
// calls do nothing, and the run returns the failure.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "graphcache/arg.h"
#include "graphcache/detail/argument.h"
#include "graphcache/detail/conditional.h"
#include "graphcache/launch_config.h"
#include "graphcache/params.h"

namespace graphcache {

// Grid, block and dynamic shared memory of a launch; each a value or a slot. Grid and block take what converts to dim3.
struct LaunchShape {
  // NOLINTNEXTLINE(google-explicit-constructor): so that a launch is written rec.launch(kernel, {grid, block}, ...).
  LaunchShape(Arg<dim3> grid_size, Arg<dim3> block_size, Arg<std::size_t> dynamic_shared_bytes = std::size_t{0})
      : grid(grid_size), block(block_size), shared_bytes(dynamic_shared_bytes) {}
  LaunchShape(const LaunchConfig& config)  // NOLINT(google-explicit-constructor)
      : grid(config.grid), block(config.block), shared_bytes(config.shared_bytes) {}

  Arg<dim3> grid;   // In blocks; every dimension at least 1.
  Arg<dim3> block;  // In threads.
  Arg<std::size_t> shared_bytes;
};

class Recorder : public detail::ConditionalNodes<Recorder> {
 public:
  static constexpr bool kTakesSlots = true;

  Recorder(detail::Recording* recording, cudaStream_t stream) : recording_(recording), stream_(stream) {}

  // The stream to enqueue on: the run's, under capture or not.
  cudaStream_t stream() const { return stream_; }

  // The recorder of another stream that `fn` forked from this one by an event (cudaEventRecord here,
  // cudaStreamWaitEvent there), and that it joins again before it returns. A call on a stream that is not part of the
  // capture fails.
  Recorder on(cudaStream_t other) const { return Recorder(recording_, other); }

  // Launches kernel(args...), as kernel<<<grid, block, shared_bytes, stream()>>>(args...) would. Any argument and any
  // part of the shape may be a slot. The block times grid limits of the device hold for each run's values: a value
  // that the runtime refuses makes that run fail as a direct launch with it would.
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const LaunchShape& shape, A&&... args) {
    constexpr bool count_fits = sizeof...(P) == sizeof...(A);
    static_assert(count_fits, "graphcache: launch() needs exactly one argument for each parameter of the kernel");
    if constexpr (count_fits) {
      constexpr bool types_fit = (... && std::is_constructible_v<Arg<std::remove_cv_t<P>>, A>);
      static_assert(types_fit,
                    "graphcache: an argument of launch() does not convert to the type of the kernel's parameter");
      if constexpr (types_fit) {
        launch_args(reinterpret_cast<const void*>(kernel), shape, Arg<std::remove_cv_t<P>>(std::forward<A>(args))...);
      }
    }
  }

  // cudaMemcpyAsync(dst, src, bytes, kind, stream()). Slots may be of any pointer type, and of any integer type for the
  // size. A size of 0 copies nothing.
  //
  // Memory of the host: a graph reads and writes it when it is launched, so after `fn` has returned, and at each replay
  // again. It must live as long as the key's entry, or be a slot. Pageable memory (not of cudaMallocHost or
  // cudaHostRegister) is read before the run returns, and written before it returns, as a direct copy does
  // (docs/semantics.md). A key runs directly if a copy has a local variable of `fn` at one end, or if two copies
  // without slots read pageable memory from the same address on, because `fn` may have changed it in between.
  void memcpy(Arg<void*> dst, Arg<const void*> src, Arg<std::size_t> bytes, cudaMemcpyKind kind = cudaMemcpyDefault);

  // cudaMemsetAsync(dst, value, bytes, stream()): sets every byte to the low byte of `value`.
  void memset(Arg<void*> dst, Arg<int> value, Arg<std::size_t> bytes);

  // Device memory that holds the slot's value, of 256 bytes at most, for kernels that read it through a pointer: of
  // launches by other means than the recorder, or of kinds that cost more to patch. One small kernel writes it, on
  // stream(), which has to be one of the cache's device; work behind that may read it, until the run's work is done.
  // However many kernels do, each run patches that one node. Needs a library that was built with nvcc; eager runs need
  // a device with memory pools. The memory belongs to the key's executable: such a key shares none, and is captured
  // again when its executable has been evicted.
  //
  // Null after a failure: launches that the recorder does not make must then be left out.
  template <class T>
  const T* on_device(Slot<T> slot) {
    constexpr std::size_t kBytes = sizeof(T) <= 16 ? 16 : 256;
    static_assert(sizeof(T) <= kBytes, "graphcache: on_device() takes values of 256 bytes at most");
    static_assert(kBytes <= detail::kMaxConvertedBytes);
    return static_cast<const T*>(on_device({nullptr, kBytes, detail::SlotAccess::offset(slot),
                                            detail::SlotAccess::recording(slot), &detail::fill_up<T, kBytes>}));
  }

  // Also if_node(), while_node() and switch_node(): graphcache/body.h.

 private:
  friend class detail::ConditionalNodes<Recorder>;
  friend class Body;
  void conditional(const detail::Conditional& node);
  const void* on_device(const detail::ArgView& value);
  template <class... As>
  void launch_args(const void* kernel, const LaunchShape& shape, const As&... args) {
    const detail::ArgView views[] = {args.view()..., detail::ArgView{}};
    launch_views(kernel, shape, views, sizeof...(As));
  }
  void launch_views(const void* kernel, const LaunchShape& shape, const detail::ArgView* args, std::size_t count);

  detail::Recording* recording_;
  cudaStream_t stream_;
};

}  // namespace graphcache

#include "graphcache/body.h"
