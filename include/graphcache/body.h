// Body and conditional nodes: work that a graph does, skips or repeats, depending on a number in device memory.
//
//   rec.launch(count_misses, {grid, block}, data, misses);             // sets *misses, on the device
//   graphcache::if_node(rec, misses, [&](graphcache::Body& body) {     // if *misses != 0
//     body.launch(repair, {grid, block}, data);
//   });
//   graphcache::while_node(rec, open, [&](graphcache::Body& body) {    // while *open != 0
//     body.launch(step, {grid, block}, data, open);
//   });
//   // Body i if *method == i, else none.
//   graphcache::switch_node(rec, method, 3, [&](graphcache::Body& body, unsigned i) {
//     body.launch(methods[i], {grid, block}, data);
//   });
//
// if_node(rec, condition, then, otherwise) has a second body, for the other case. In a body, the body takes the place
// of the recorder.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#include "graphcache/detail/body_shape.h"
#include "graphcache/detail/conditional.h"
#include "graphcache/recorder.h"

namespace graphcache {

// The recorder of a conditional node's body. It is valid during one call of the body. As with Recorder, calls report no
// errors themselves: after the first failure they do nothing, and the run fails.
//
// "Rules" at the end says what a body may do, how direct runs decide, and where conditional nodes do not work.
class Body {
 public:
  Body(detail::Recording* recording, cudaStream_t stream) : recorder_(recording, stream) {}

  // The stream to enqueue on. During a capture it is not the stream of the run.
  cudaStream_t stream() const { return recorder_.stream(); }
  // The same body on another stream, which was forked from this one by an event and is joined before the body returns.
  Body on(StreamArg other) const {
    Body forked = *this;
    forked.recorder_ = recorder_.on(other);
    return forked;
  }

  // These do the same as the functions of Recorder, but accept no slots.
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const detail::BodyShape& shape, A&&... args) {
    static_assert(
        detail::kNoSlots<A...>,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded; "
        "write it to device memory by rec.write outside of the body, and pass that memory");
    if constexpr (detail::kNoSlots<A...>) recorder_.launch(kernel, shape.shape, std::forward<A>(args)...);
  }
  template <class... P, class G, class... A, std::enable_if_t<std::is_convertible_v<const G&, Arg<dim3>>, int> = 0>
  void launch(void (*)(P...), const G&, A&&...) {
    static_assert(detail::kNever<G>,
                  "graphcache: launch() takes grid and block in braces: body.launch(kernel, {grid, block}, args...)");
  }
  template <class... A>
  void launch(detail::name_the_template_arguments_of_the_kernel_as_in_rec_launch_scale_of_float,
              const detail::BodyShape&, A&&...) = delete;
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
  friend struct detail::RecorderAccess;

  Recorder recorder_;
};

// `rec` is a Recorder or a Body.
template <class R, class C, class Then>
void if_node(const R& rec, C condition, Then&& then) {
  detail::add_conditional(rec, detail::ConditionalKind::kIf, condition, 1, [&](Body& body, unsigned) {
    static_assert(detail::kIsBody<Then, Body&>, "graphcache: a body takes a graphcache::Body& and returns nothing");
    then(body);
  });
}
template <class R, class C, class Then, class Else>
void if_node(const R& rec, C condition, Then&& then, Else&& otherwise) {
  detail::add_conditional(rec, detail::ConditionalKind::kIf, condition, 2, [&](Body& body, unsigned index) {
    static_assert(detail::kIsBody<Then, Body&> && detail::kIsBody<Else, Body&>,
                  "graphcache: a body takes a graphcache::Body& and returns nothing");
    index == 0 ? then(body) : otherwise(body);
  });
}
template <class R, class C, class F>
void while_node(const R& rec, C condition, F&& repeated) {
  detail::add_conditional(rec, detail::ConditionalKind::kWhile, condition, 1, [&](Body& body, unsigned) {
    static_assert(detail::kIsBody<F, Body&>, "graphcache: a body takes a graphcache::Body& and returns nothing");
    repeated(body);
  });
}
template <class R, class C, class F>
void switch_node(const R& rec, C index, unsigned count, F&& nth) {
  detail::add_conditional(rec, detail::ConditionalKind::kSwitch, index, count, [&](Body& body, unsigned i) {
    static_assert(detail::kIsBody<F, Body&, unsigned>,
                  "graphcache: a body takes a graphcache::Body& and returns nothing");
    nth(body, i);
  });
}

// ---- Rules --------------------------------------------------------------------------------------------------------
//
// The condition is a const unsigned*, or a slot of that type, and points to memory that kernels of the cache's device
// can read. It is read on the device, when the stream reaches the node; while_node() reads it again after each round. A
// small kernel of the library reads it, so programs need no cudaGraphConditionalHandle, and no device code for it.
//
// What a body may do. A body is called once, when the node is recorded. Everything that it enqueues on body.stream() is
// recorded with its present arguments, whether the graph will run it or not. Slots cannot be used in a body, because
// its nodes stay as they were recorded: write the slot to device memory by Recorder::write() outside of the body, and
// pass that memory. A cache that is run inside a body becomes part of the body (kInlined). Other streams must be forked
// from body.stream() and joined again; neither rec.stream() nor streams that `fn` has forked can be. CUDA permits
// kernels, copies, memsets and conditional nodes in a body. If a body contains a host function, cudaMallocAsync,
// cudaFreeAsync, or a copy from or to pageable memory, or throws what `fn` catches, `fn` runs directly
// (kCaptureFailed).
//
// Direct runs. If `fn` is called uncaptured, the host decides. At each decision the run waits for its stream, copies
// the condition, and calls the body that is needed; a loop decides again after each round. So a body may be called any
// number of times. It must only enqueue, and enqueue the same work with the same values each time. A loop ends when a
// call inside it fails. A CUDA call that bypasses `body` counts as failed if it leaves a new error in the last-error
// slot.
//
// Limits. Keys with conditional nodes share no executables, and CUDA permits only one executable of such a graph at a
// time. `fn` runs directly if the library was built without nvcc. The same applies to a switch_node() or an `otherwise`
// if CUDA is older than 12.8. In a capture by other code (Options::inline_in_foreign_capture) conditional nodes fail:
// the library's kernel must stay loaded while that graph is launched, and the cache cannot know how long that is.

}  // namespace graphcache
