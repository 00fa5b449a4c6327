// if_node(), while_node() and switch_node() of Recorder and Body. graphcache/body.h describes them.
#pragma once

#include <type_traits>

#include "graphcache/arg.h"
#include "graphcache/detail/argument.h"

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
inline constexpr bool kReturnsNothing = std::is_void_v<std::invoke_result_t<F&, A...>>;

// Base class of Recorder and Body. Its functions call conditional(const Conditional&) of the derived class.
template <class Derived>
class ConditionalNodes {
 public:
  template <class C, class Then>
  void if_node(C condition, Then&& then) {
    enqueue(ConditionalKind::kIf, condition, 1, [&](Body& body, unsigned) {
      static_assert(kReturnsNothing<Then, Body&>, "graphcache: the body of a conditional node returns nothing");
      then(body);
    });
  }
  template <class C, class Then, class Else>
  void if_node(C condition, Then&& then, Else&& otherwise) {
    enqueue(ConditionalKind::kIf, condition, 2, [&](Body& body, unsigned index) {
      static_assert(kReturnsNothing<Then, Body&> && kReturnsNothing<Else, Body&>,
                    "graphcache: the body of a conditional node returns nothing");
      index == 0 ? then(body) : otherwise(body);
    });
  }
  template <class C, class F>
  void while_node(C condition, F&& repeated) {
    enqueue(ConditionalKind::kWhile, condition, 1, [&](Body& body, unsigned) {
      static_assert(kReturnsNothing<F, Body&>, "graphcache: the body of a conditional node returns nothing");
      repeated(body);
    });
  }
  template <class C, class F>
  void switch_node(C index, unsigned count, F&& nth) {
    enqueue(ConditionalKind::kSwitch, index, count, [&](Body& body, unsigned i) {
      static_assert(kReturnsNothing<F, Body&, unsigned>, "graphcache: the body of a conditional node returns nothing");
      nth(body, i);
    });
  }

 private:
  template <class C, class Bodies>
  void enqueue(ConditionalKind kind, const C& condition, unsigned count, Bodies bodies) {
    constexpr bool may_be_slot = Derived::kTakesSlots || !kIsSlot<C>;
    static_assert(
        may_be_slot,
        "graphcache: a slot cannot be used inside a conditional body, whose nodes stay as they were recorded; "
        "make this node outside of a body, or pass a pointer that stays");
    if constexpr (may_be_slot) {
      static_assert(std::is_constructible_v<Arg<const unsigned*>, C>,
                    "graphcache: the condition of a node is a pointer to an unsigned number in device memory");
      const Arg<const unsigned*> pointer(condition);
      static_cast<Derived*>(this)->conditional(
          {kind, pointer.view(), count, &bodies,
           [](void* all, Body& body, unsigned i) { (*static_cast<Bodies*>(all))(body, i); }});
    }
  }
};

}  // namespace detail
}  // namespace graphcache
