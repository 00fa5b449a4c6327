// OrdersToStop: the exceptions of `fn` that end a run at once.
//
//   template <>
//   struct graphcache::OrdersToStop<> {
//     using Types = graphcache::TypeList<Cancelled>;
//   };
#pragma once

namespace graphcache {

template <class... Ts>
struct TypeList {};

// If `fn` fails under capture, a run calls it again, directly. An exception of one of these types, or of a class
// derived from one, passes through instead. Specialise it once, in a header that comes before every run of the program.
// Cancellation of a thread passes through, and waits elsewhere.
template <class Unused = void>
struct OrdersToStop {
  using Types = TypeList<>;
};

}  // namespace graphcache
