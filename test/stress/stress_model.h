// The work and the expected results of the stress test: random work with a reference on the host, and the orders of
// operations that explain an outcome.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "graphcache/graphcache.h"

namespace graphcache::test::stress {

// SplitMix64: a generator that is cheap to create. Each operation has its own and draws the same in every run.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  Random(std::uint64_t seed, std::uint64_t stream, std::uint64_t number)
      : Random(Random(Random(seed).next() + stream).next() + number) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int bound) { return static_cast<int>(next() % static_cast<std::uint64_t>(bound)); }
  bool one_in(int n) { return below(n) == 0; }
  template <class T, std::size_t N>
  const T& of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  std::uint64_t state_;
};

// ---- Work ----

constexpr int kSize = 8;
constexpr unsigned kBlock = 4;

// The memory of a lane. Every step changes it in a way that shows how often, in which order and with which values it
// was done.
struct Memory {
  int p[kSize], q[kSize];
};

// Values of slots, or those in a graph without slots.
struct Values {
  int a = 0;
  unsigned grid = 1;
  std::size_t bytes = 4;
};

struct Step {
  enum Kind {
    kBlend,           // changes p, with the value a
    kBlendOtherwise,  // another kernel with the same arguments
    kBlendIn,         // changes p by q, without a value
    kSet,             // sets q to the value a; its size is a value
    kCopy,            // copies p to q; its size is a value
    kGrid,            // changes q, with a grid that is a value
    kKept,            // sets q[0] to the constant, by a copy from pageable memory that is kept
    kFork,            // changes q on another stream that is forked and joined
    kNothing,         // a step that all siblings have in common
  };
  static constexpr int kKinds = kNothing;

  Kind kind;
  int factor;
  int constant;
  unsigned grid;
};
using Recipe = std::vector<Step>;

// The first number selects kernel and topology, the second one constants and grids: keys of one shape are siblings. If
// they have the same kernels, one table can hold them. `in_common` more nodes do nothing.
inline Recipe make_recipe(std::uint64_t shape, std::uint64_t number, bool forks, int in_common, bool same_kernels) {
  Random shapes(shape), numbers(number);
  Recipe recipe(static_cast<std::size_t>(1 + shapes.below(3)));
  for (Step& step : recipe) {
    step.kind = static_cast<Step::Kind>(shapes.below(forks ? Step::kKinds : Step::kFork));
    // A sibling may have another kernel, but not another topology or other types of nodes.
    if (step.kind == Step::kBlend && numbers.one_in(3) && !same_kernels) step.kind = Step::kBlendOtherwise;
    step.factor = 2 * numbers.below(50) + 3;
    step.constant = numbers.below(1000);
    step.grid = static_cast<unsigned>(1 + numbers.below(2));
  }
  recipe.insert(recipe.end(), static_cast<std::size_t>(in_common), Step{Step::kNothing, 0, 0, 1});
  return recipe;
}

// The effect of the kernels of kernels.cu, the copies and the sets.
inline void apply(const Step& step, const Values& values, Memory* memory) {
  const auto each = [](int* out, unsigned grid, auto&& f) {
    for (unsigned i = 0; i < std::min<unsigned>(kSize, grid * kBlock); ++i) {
      out[i] = static_cast<int>(f(static_cast<unsigned>(out[i]), i));
    }
  };
  const unsigned factor = static_cast<unsigned>(step.factor), constant = static_cast<unsigned>(step.constant);
  const unsigned a = static_cast<unsigned>(values.a);
  switch (step.kind) {
    case Step::kBlend:
      return each(memory->p, step.grid, [&](unsigned x, unsigned i) { return factor * x + a + i; });
    case Step::kBlendOtherwise:
      return each(memory->p, step.grid, [&](unsigned x, unsigned) { return (x ^ factor) * 5 - a; });
    case Step::kBlendIn:
      return each(memory->p, step.grid,
                  [&](unsigned x, unsigned i) { return factor * x + static_cast<unsigned>(memory->q[i]); });
    case Step::kSet:
      std::memset(memory->q, values.a, values.bytes);
      return;
    case Step::kCopy:
      std::memcpy(memory->q, memory->p, values.bytes);
      return;
    case Step::kGrid:
      return each(memory->q, values.grid, [&](unsigned x, unsigned i) { return factor * x + constant + i; });
    case Step::kNothing:
      return;
    case Step::kKept:
      memory->q[0] = step.constant;
      return;
    case Step::kFork:
      return each(memory->q, step.grid, [&](unsigned x, unsigned i) { return factor * x + a + i; });
  }
}

// ---- Orders ----

// One clock for all threads. Its ticks order what surely preceded what.
using Clock = std::atomic<std::uint64_t>;

inline void raise(std::atomic<std::uint64_t>& to, std::uint64_t at_least) {
  std::uint64_t now = to;
  while (now < at_least && !to.compare_exchange_weak(now, at_least)) {
  }
}

// The model's knowledge of one key.
//
// A run may be a hit only if some capture of its key was neither later nor forgotten before. That is the case if a
// capture that began before the run's end had not ended when a forgetting began that had ended when the run began. Only
// the last capture to end and the last forgetting to begin matter, so no history is kept.
struct KeyState {
  KeyState(Key the_key, Recipe the_recipe) : key(std::move(the_key)), recipe(std::move(the_recipe)) {}

  const Key key;
  const Recipe recipe;
  std::atomic<std::uint64_t> forgotten{0};  // begin of the last completed erasure
  std::atomic<std::uint64_t> captured{0};   // end of the last capture's run
  std::atomic<int> capturing{0};            // number of runs under way that have called `fn` under capture
  std::atomic<int> captures{0};             // number of calls of `fn` under capture
  std::atomic<std::uint64_t> erasures_begun{0}, erasures_over{0};
};

inline bool may_be_recorded(const KeyState& state, std::uint64_t forgotten_before) {
  return state.capturing != 0 || (state.captured != 0 && state.captured >= forgotten_before);
}

}  // namespace graphcache::test::stress
