// Conditional nodes: work that a graph does, repeats or leaves out by what device memory holds when it gets there.
//
//   rec.launch(count_misses, {grid, block}, data, misses);            // sets *misses, on the device
//   rec.if_node(misses, [&](graphcache::Body& body) {                 // if *misses != 0
//     body.launch(repair, {grid, block}, data);
//   });
//   rec.while_node(open, [&](graphcache::Body& body) {                // while *open != 0
//     body.launch(step, {grid, block}, data, open);
//   });
//   rec.switch_node(method, 3, [&](graphcache::Body& body, unsigned i) {   // body i if *method == i, else none
//     body.launch(methods[i], {grid, block}, data);
//   });
//
// if_node(condition, then, otherwise) has a second body. A condition is a pointer of type const unsigned*, or a slot of
// one, to memory that kernels of the cache's device can read. It is read on the device, when the stream gets there;
// while_node() reads it again behind each round. A small kernel of the library's does that: users need no
// cudaGraphConditionalHandle, and no device code but their own.
//
// A body is called when the node is recorded, once: what it enqueues on body.stream() is recorded as it stands, whether
// it will be run or not. A slot cannot be used inside, since the nodes of a body stay as they were recorded: pass what
// rec.on_device(slot) has given. A run of a cache inside a body becomes part of that body (kInlined). Work on other
// streams, rec.stream() included, must be forked from body.stream() and joined again; else the run fails. CUDA allows
// kernels, copies, sets and conditional nodes in a body, and neither host functions nor cudaMallocAsync and
// cudaFreeAsync: `fn` is then run directly, and stats() counts kCaptureFailed.
//
// When `fn` is run uncaptured, the host decides: the run waits for its stream at each decision, copies the condition,
// and calls the body that is wanted. A loop decides after each round. So a body may be called any number of times, and
// must do no more than enqueue. What it enqueues is the same, and so are the values. A loop ends if a call in it fails.
// A call of CUDA by other means than the body counts if it leaves an error that was not in the last-error slot before.
//
// Keys with conditional nodes share no executables, and CUDA allows one executable of such a graph at a time. A loop
// whose condition is a slot makes its key hold memory, as Recorder::on_device() does. `fn` is run directly, too, where
// the library was built without nvcc, and where CUDA is older than 12.8 and there is a switch_node() or an `otherwise`.
// Inside a capture of somebody else's (Options::inline_in_foreign_capture) these calls fail, because the cache cannot
// know how long that graph will be launched, and so how long the library's kernel must stay loaded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "graphcache/recorder.h"

namespace graphcache {

namespace detail {

template <class... A>
inline constexpr bool kNoSlots = (... && !kIsSlot<std::remove_cv_t<std::remove_reference_t<A>>>);

// Grid, block and dynamic shared memory of a launch in a body.
struct BodyShape {
  template <class G, class B, class S = std::size_t>
  BodyShape(const G& grid, const B& block, const S& shared_bytes = S{}) : shape(make(grid, block, shared_bytes)) {}
  BodyShape(const LaunchConfig& config) : shape(config) {}  // NOLINT(google-explicit-constructor)

  LaunchShape shape;

 private:
  template <class G, class B, class S>
  static LaunchShape make(const G& grid, const B& block, const S& shared_bytes) {
    static_assert(
        kNoSlots<G, B, S>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded");
    if constexpr (kNoSlots<G, B, S>) return LaunchShape(grid, block, shared_bytes);
  }
};

}  // namespace detail

// What a body of a conditional node enqueues its work through. It belongs to one call of the body. Its calls return
// nothing: as a recorder's, the first failure makes the run fail.
class Body : public detail::ConditionalNodes<Body> {
 public:
  static constexpr bool kTakesSlots = false;

  Body(detail::Recording* recording, cudaStream_t stream) : recorder_(recording, stream) {}

  // The stream to enqueue on. It is another one than the run's where the body is captured.
  cudaStream_t stream() const { return recorder_.stream(); }
  // The same body on a stream that was forked from this one by an event, and that is joined again before the body ends.
  Body on(cudaStream_t other) const {
    Body forked = *this;
    forked.recorder_ = recorder_.on(other);
    return forked;
  }

  // As those of Recorder, without slots.
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const detail::BodyShape& shape, A&&... args) {
    static_assert(
        detail::kNoSlots<A...>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded; "
        "pass rec.on_device(slot) instead");
    if constexpr (detail::kNoSlots<A...>) recorder_.launch(kernel, shape.shape, std::forward<A>(args)...);
  }
  template <class D, class S, class N>
  void memcpy(D dst, S src, N bytes, cudaMemcpyKind kind = cudaMemcpyDefault) {
    static_assert(
        detail::kNoSlots<D, S, N>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded");
    if constexpr (detail::kNoSlots<D, S, N>) recorder_.memcpy(dst, src, bytes, kind);
  }
  template <class D, class V, class N>
  void memset(D dst, V value, N bytes) {
    static_assert(
        detail::kNoSlots<D, V, N>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded");
    if constexpr (detail::kNoSlots<D, V, N>) recorder_.memset(dst, value, bytes);
  }

 private:
  friend class detail::ConditionalNodes<Body>;
  void conditional(const detail::Conditional& node) { recorder_.conditional(node); }

  Recorder recorder_;
};

}  // namespace graphcache
