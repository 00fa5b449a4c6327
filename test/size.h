// How often a suite repeats its work: numbers of seeds, sequences, pairs of failures.
#pragma once

#include <cstdlib>

namespace graphcache::test {

// Full with GRAPHCACHE_FULL=1 in the environment. Brief with GRAPHCACHE_BRIEF=1, for a lane that needs every path
// through the code but not every repetition. Another lane covers the repetitions, which would take too long there.
enum class Size { kBrief, kOrdinary, kFull };

inline Size size() {
  const auto is_on = [](const char* variable) {
    const char* const text = std::getenv(variable);
    return text != nullptr && text[0] == '1';
  };
  return is_on("GRAPHCACHE_FULL") ? Size::kFull : is_on("GRAPHCACHE_BRIEF") ? Size::kBrief : Size::kOrdinary;
}

template <class T>
T by_size(T brief, T ordinary, T full) {
  switch (size()) {
    case Size::kBrief:
      return brief;
    case Size::kOrdinary:
      return ordinary;
    case Size::kFull:
      return full;
  }
  return ordinary;
}

}  // namespace graphcache::test
