// The messages of calls whose arguments are no key, or in no right order. Not for users.
#pragma once

#include <absl/status/status.h>

#include <type_traits>

#include "graphcache/detail/call.h"
#include "graphcache/key.h"
#include "graphcache/stream.h"

namespace graphcache::detail {

template <class T>
inline constexpr bool kIsKey = std::is_convertible_v<T&&, const Key&>;
// A stream may be a literal 0 or NULL.
template <class T>
inline constexpr bool kIsStream = std::is_convertible_v<T&&, StreamArg> || std::is_integral_v<T>;

// Whether these may follow the key.
template <class... Ts>
inline constexpr bool kAreInOrder = false;
template <class Fn>
inline constexpr bool kAreInOrder<Fn> = std::is_class_v<std::decay_t<Fn>> || !kIsStream<Fn>;
template <class T, class Fn>
inline constexpr bool kAreInOrder<T, Fn> = kIsStream<T> || kIsGiven<std::decay_t<T>>;
template <class T, class Given, class Fn>
inline constexpr bool kAreInOrder<T, Given, Fn> = kIsStream<T>&& kIsGiven<std::decay_t<Given>>;

// Whether these are the arguments of a run.
template <class... Args>
inline constexpr bool kIsCall = false;
template <class T, class... Rest>
inline constexpr bool kIsCall<T, Rest...> = kIsKey<T>&& kAreInOrder<Rest...>;
// An overload with this parameter takes what the others do not.
template <class... Args>
using IfNoCall = std::enable_if_t<!kIsCall<Args...>, int>;

// A class and no function, because compilers check a class at once: the message then comes before others.
template <class... Args>
struct NoCall {
  static_assert(
      kIsCall<Args...>,
      "graphcache: the arguments are a graphcache::Key, such as graphcache::key(\"text\", 8), then a stream if "
      "there is one, then params() or values() if there are any, then fn");
  static absl::Status status() { return absl::OkStatus(); }
  static Key key() { return Key(); }
};

}  // namespace graphcache::detail
