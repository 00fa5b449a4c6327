// The message of a call that has something else in the place of its key. Not for users.
#pragma once

#include <type_traits>

#include "graphcache/detail/advice.h"
#include "graphcache/key.h"

namespace graphcache::detail {

// An overload with this parameter takes what is no key.
template <class T>
using IfNoKey = std::enable_if_t<!std::is_convertible_v<T&&, const Key&>, int>;

// A class and no function, because compilers check a class at once: the message then comes before others.
template <class T>
struct NoKey {
  static_assert(kNever<T>,
                "graphcache: the first argument must be a graphcache::Key: write graphcache::key(\"text\") for "
                "\"text\", and graphcache::key(\"text\", 8) for a text and a number");
  static Key key() { return Key(); }
};

}  // namespace graphcache::detail
