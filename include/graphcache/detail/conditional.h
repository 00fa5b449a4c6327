// What if_node(), while_node() and switch_node() of graphcache/body.h are made of.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "graphcache/arg.h"
#include "graphcache/detail/argument.h"
#include "graphcache/recorder.h"

namespace graphcache {

class Body;

namespace detail {

enum class ConditionalKind { kIf, kWhile, kSwitch };

// One conditional node with type-erased bodies.
struct Conditional {
  ConditionalKind kind;
  ArgView condition;                                       // The condition, a const unsigned*.
  unsigned count;                                          // The number of bodies.
  void* bodies;                                            // The callable that runs any of the bodies.
  void (*call)(void* bodies, Body& body, unsigned index);  // Calls it for the body with this index.
};

template <class F, class... A>
struct IsVoidCall : std::is_void<std::invoke_result_t<F&, A...>> {};
template <class F, class... A>
inline constexpr bool kIsBody = std::conjunction_v<std::is_invocable<F&, A...>, IsVoidCall<F, A...>>;

void add_conditional(Recording* recording, cudaStream_t stream, const Conditional& node);

struct RecorderAccess {
  static Recording* recording(const Recorder& rec) { return rec.recording_; }
  template <class B>
  static Recording* recording(const B& body) {
    return recording(body.recorder_);
  }
};

// `R` is Recorder or Body.
template <class R, class C, class Bodies>
void add_conditional(const R& rec, ConditionalKind kind, const C& condition, unsigned count, Bodies bodies) {
  constexpr bool may_be_slot = std::is_same_v<R, Recorder> || !kIsSlot<C>;
  static_assert(may_be_slot,
                "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded; "
                "make this node outside of a body, or pass a pointer that stays");
  if constexpr (may_be_slot) {
    static_assert(std::is_constructible_v<Arg<const unsigned*>, C>,
                  "graphcache: the condition of a node is a pointer to an unsigned number in device memory");
    const Arg<const unsigned*> pointer(condition);
    add_conditional(RecorderAccess::recording(rec), rec.stream(),
                    {kind, pointer.view(), count, &bodies,
                     [](void* all, Body& body, unsigned i) { (*static_cast<Bodies*>(all))(body, i); }});
  }
}

}  // namespace detail
}  // namespace graphcache
