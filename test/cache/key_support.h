// User types that can be parts of keys, and enumerations of several kinds.
#pragma once

#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "graphcache/key.h"

namespace user {

struct Padded {
  char small;
  int64_t large;
};
inline void graphcache_key(graphcache::Keyer& keyer, const Padded& padded) { keyer.add(padded.small, padded.large); }

struct Nothing {};
inline void graphcache_key(graphcache::Keyer&, const Nothing&) {}

struct Shape {
  std::vector<int> extents;
  Padded padded;
};
inline void graphcache_key(graphcache::Keyer& keyer, const Shape& shape) { keyer.add(shape.extents).add(shape.padded); }

// Each could be encoded in another way as well; the function decides.
struct Name {
  std::string text;
  operator std::string_view() const { return text; }
};
inline void graphcache_key(graphcache::Keyer& keyer, const Name& name) { keyer.add(name.text.size()); }

// Pointers and enumerators convert to it.
struct Flags {
  Flags(bool given) : is_set(given) {}
  bool is_set;
};
inline void graphcache_key(graphcache::Keyer& keyer, const Flags& flags) { keyer.add(flags.is_set); }
enum Plain { kOne = 1, kTwo = 2 };

enum class Mode { kFast, kExact };
inline void graphcache_key(graphcache::Keyer& keyer, Mode mode) { keyer.add(mode == Mode::kFast ? "fast" : "exact"); }

struct Convertible {
  operator std::string_view() const { return "text"; }
};

struct Thrower {};
inline void graphcache_key(graphcache::Keyer& keyer, const Thrower&) {
  keyer.add(std::string(1000, 'x'));
  throw 7;
}

}  // namespace user

namespace graphcache {

inline void PrintTo(const Key& key, std::ostream* out) { *out << key.to_string(); }

enum Plain { kZero, kOne };
enum class Scoped : int8_t { kMinusOne = -1, kOne = 1 };
enum class Wide : uint64_t { kOne = 1, kMax = std::numeric_limits<uint64_t>::max() };

}  // namespace graphcache
