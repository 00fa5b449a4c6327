// Recorder: enqueues launches, copies and sets whose arguments may change from run to run.
//
//   [&](graphcache::Recorder& rec, graphcache::Slot<float> lr) {
//     forward<<<grid, block, 0, rec.stream()>>>(weights, hidden);     // recorded with its present arguments
//     rec.launch(sgd, {grid, block}, weights, gradient, lr);          // lr has a new value in each run
//   }
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "graphcache/arg.h"
#include "graphcache/detail/advice.h"
#include "graphcache/detail/argument.h"
#include "graphcache/launch_config.h"
#include "graphcache/params.h"
#include "graphcache/stream.h"

namespace graphcache {

namespace detail {
struct RecorderAccess;
// Records that `fn` threw an order to stop.
void note_order_to_stop(Recorder& recorder);
}  // namespace detail

// Passed to `fn`, which enqueues its work through it. A later run patches its own values into the nodes that were
// recorded with slots. Work that `fn` enqueues on stream() by other means, libraries included, is recorded with its
// present arguments. If `fn` is called uncaptured, the same calls enqueue directly.
//
// A recorder is valid during one call of `fn`, in the thread of that call. Its member functions report no errors
// themselves: after the first failure they do nothing, and the run returns that failure.
class Recorder {
 public:
  Recorder(detail::Recording* recording, cudaStream_t stream) : recording_(recording), stream_(stream) {}

  // The stream to enqueue on, in captures and in direct calls. On the legacy stream, captures use another stream
  // (Cache::run).
  cudaStream_t stream() const { return stream_; }

  // The recorder of another stream, for work that runs in parallel. `fn` forks that stream from this one by an event
  // (cudaEventRecord here, cudaStreamWaitEvent there), and joins it before it returns. A call on a stream that is not
  // part of the capture fails.
  Recorder on(StreamArg other) const { return Recorder(recording_, other); }

  // Launches the kernel as kernel<<<grid, block, shared_bytes, stream()>>>(args...) does. Any argument and any part of
  // the shape may be a slot. The shape needs braces: rec.launch(kernel, {grid, block}, args...). A template kernel
  // needs its template arguments: rec.launch(scale<float>, ...).
  //
  // Each argument is converted to the type of the kernel's parameter, and is destroyed after the launch. Each replay
  // passes the same bytes again, so a parameter must not own what the kernel uses. Arguments are forwarded: write the
  // type in front of braces, and nullptr instead of 0.
  //
  // The device's limits on blocks and grids apply to the values of each run. If the runtime refuses a value, that run
  // fails as a direct launch with the value would.
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const LaunchShape& shape, A&&... args) {
    constexpr bool count_fits = sizeof...(P) == sizeof...(A);
    static_assert(count_fits, "graphcache: launch() needs exactly one argument for each parameter of the kernel");
    if constexpr (count_fits) {
      using detail::Fit;
      GRAPHCACHE_ASSERT_ARGUMENTS("of launch() is a reference in the kernel: the device needs a value or a pointer",
                                  detail::kFit<P, A> != Fit::kReference...);
      GRAPHCACHE_ASSERT_ARGUMENTS(
          "of launch() is a slot: its type must be trivially copyable, and the kernel's parameter have no destructor",
          detail::kFit<P, A> != Fit::kNoSlot...);
      GRAPHCACHE_ASSERT_ARGUMENTS("of launch() does not convert to the type of the kernel's parameter",
                                  detail::kFit<P, A> != Fit::kNoConversion...);
      if constexpr ((... && (detail::kFit<P, A> == Fit::kFits))) {
        launch_args(reinterpret_cast<const void*>(kernel), shape, Arg<std::remove_cv_t<P>>(std::forward<A>(args))...);
      }
    }
  }

  // Calls of launch() that do not compile, with advice.
  template <class... P, class G, class... A, std::enable_if_t<std::is_convertible_v<const G&, Arg<dim3>>, int> = 0>
  void launch(void (*)(P...), const G&, A&&...) {
    static_assert(detail::kNever<G>,
                  "graphcache: launch() takes grid and block in braces: rec.launch(kernel, {grid, block}, args...)");
  }
  template <class... A>
  void launch(detail::name_the_template_arguments_of_the_kernel_as_in_rec_launch_scale_of_float, const LaunchShape&,
              A&&...) = delete;

  // Copies as cudaMemcpyAsync(dst, src, bytes, kind, stream()) does. Slots for `dst` and `src` may have any pointer
  // type, and a slot for `bytes` any integer type. A size of 0 copies nothing, and is not captured.
  //
  // A graph accesses host memory when it is launched: after `fn` has returned, and again in each replay. So pinned
  // memory (from cudaMallocHost or cudaHostRegister) must live as long as the key's entry, or be a slot.
  //
  // Pageable memory (all other host memory, such as a std::vector or a local variable) must be a slot or be kept
  // (keep). If it is not, the key runs directly. This holds for each end of each copy that `fn` enqueues, by this or by
  // other means. As a slot it is read and written before the run returns, as in a direct copy (docs/semantics.md).
  void memcpy(Arg<void*> dst, Arg<const void*> src, Arg<std::size_t> bytes, cudaMemcpyKind kind = cudaMemcpyDefault);

  // Fills memory as cudaMemsetAsync(dst, value, bytes, stream()) does: every byte becomes the low byte of `value`.
  void memset(Arg<void*> dst, Arg<int> value, Arg<std::size_t> bytes);

  // Writes the slot's value to device memory of the caller's, behind the earlier work of stream(). Use it for launches
  // that the recorder cannot make, such as those of libraries that take a device pointer, and for launches that are
  // costly to patch: however many kernels read the value there, each run patches a single node. `device` has room for a
  // T, at most 256 bytes, and must be memory of the cache's device. The library must have been built with nvcc.
  template <class T>
  void write(detail::Identity<T>* device, Slot<T> slot) {
    static_assert(sizeof(T) <= detail::kMaxConvertedBytes, "graphcache: write() takes values of 256 bytes at most");
    constexpr std::size_t kBytes = sizeof(T) <= 16 ? 16 : detail::kMaxConvertedBytes;
    write(device, sizeof(T),
          {nullptr, kBytes, detail::SlotAccess::offset(slot), detail::SlotAccess::recording(slot),
           &detail::fill_up<T, kBytes>});
  }

  // Keeps an object alive as long as the graph that is being recorded, its executables and their launches: what the
  // work needs and `fn` would otherwise destroy, such as a temporary or a library's context. If `fn` is called without
  // a capture of the cache's own, or to verify a graph, the object is kept until the work is enqueued; a host function
  // then needs another owner of its data. It is released outside of captures, by a run that is not a hit or by erase(),
  // clear() or the destructor; what it does then must not wait for a run of this key.
  //
  // It is also the promise that host memory lives, for what `fn` enqueues from here on. Pageable memory of a copy, and
  // data of a host function, may be the object itself, or only the elements of a container with data() and size().
  // For other memory that it owns, pass std::shared_ptr<void>(owner, memory): there only the address `memory` counts.
  // Do not change such memory while runs are in flight, because each launch reads it again.
  template <class T>
  void keep(std::shared_ptr<T> owner) {
    std::pair<const void*, std::size_t> memory(owner.get(), 0);
    if constexpr (std::is_object_v<T> && !std::is_array_v<T>) {
      if (owner != nullptr) memory = detail::memory_of(*owner, 0);
    }
    keep_memory(std::shared_ptr<const void>(owner, memory.first), memory.second);
  }

 private:
  friend struct detail::RecorderAccess;  // Headers that add calls, such as body.h.
  friend void detail::note_order_to_stop(Recorder& recorder);
  void write(void* device, std::size_t bytes, const detail::ArgView& value);
  void keep_memory(std::shared_ptr<const void> owner, std::size_t bytes);
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
