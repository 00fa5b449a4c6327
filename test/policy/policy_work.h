// Shared by the suites of the policy: graphs whose results show the order of their work, a cache with their memory, and
// families of keys.
#pragma once

#include <device_launch_parameters.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/template.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "support.h"

namespace graphcache::test {

struct State {
  std::uint32_t sum = 0;
  unsigned char scratch[4] = {};
};

// Mixes order, shapes and values of kernels and sets into the state.
inline void mix_in(State* state, std::uint32_t factor, unsigned grid, unsigned block, int value) {
  for (const unsigned char byte : state->scratch) state->sum = state->sum * factor + byte;
  state->sum = (state->sum * factor + grid) * factor + block;
  state->sum = state->sum * factor + static_cast<std::uint32_t>(value);
}

constexpr std::uint32_t kFactors[] = {16777619, 2654435761};

template <int kWhich>
inline void mix(State* state, int value) {
  if (blockIdx.x == 0 && threadIdx.x == 0) mix_in(state, kFactors[kWhich], gridDim.x, blockDim.x, value);
}

}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::mix<0>)
GRAPHCACHE_HOST_KERNEL(graphcache::test::mix<1>)

namespace graphcache::test {

constexpr void (*kMix[])(State*, int) = {mix<0>, mix<1>};

using Values = std::array<int, 2>;

// A kernel, or a set of the scratch bytes. Each value is constant or has the number of a slot; -1 means no slot.
struct Node {
  bool sets = false;
  int kernel = 0;
  unsigned grid = 1, block = 1;
  int value = 0, size = 4;
  int value_slot = -1, size_slot = -1;

  bool has_slot() const { return value_slot >= 0 || size_slot >= 0; }
  Node with(const Values& values) const {
    Node node = *this;
    if (value_slot >= 0) node.value = values[static_cast<std::size_t>(value_slot)];
    if (size_slot >= 0) node.size = values[static_cast<std::size_t>(size_slot)];
    return node;
  }
};

struct Spec {
  Key key;
  std::string name;
  std::vector<Node> nodes;
  bool varying = false;  // whether its runs have params
};

inline Spec spec(const std::string& name, std::vector<Node> nodes) {
  const bool varying = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.has_slot(); });
  return {key(name), name, std::move(nodes), varying};
}

// The effect of a run of the nodes.
inline void apply(const std::vector<Node>& nodes, const Values& values, State* state) {
  for (const Node& constant : nodes) {
    const Node node = constant.with(values);
    if (node.sets) {
      std::memset(state->scratch, node.value, static_cast<std::size_t>(node.size));
    } else {
      mix_in(state, kFactors[node.kernel], node.grid, node.block, node.value);
    }
  }
}

// The data of `fn`. Another kPlace means another place of the program.
template <int kPlace>
struct Job {
  const Spec* spec;
  State* state;
  int* calls;
  const std::function<void()>* in_fn;

  void operator()(Recorder& rec) const { enqueue(rec, nullptr); }
  void operator()(Recorder& rec, Slot<int> a, Slot<int> b) const {
    const Slot<int> slots[] = {a, b};
    enqueue(rec, slots);
  }

 private:
  void enqueue(Recorder& rec, const Slot<int>* slots) const {
    ++*calls;
    if (*in_fn) (*in_fn)();
    for (const Node& node : spec->nodes) {
      const Arg<int> value = node.value_slot < 0 ? Arg<int>(node.value) : Arg<int>(slots[node.value_slot]);
      if (node.sets) {
        rec.memset(state->scratch, value,
                   node.size_slot < 0 ? Arg<std::size_t>(node.size) : Arg<std::size_t>(slots[node.size_slot]));
      } else {
        rec.launch(kMix[node.kernel], {node.grid, node.block}, state, value);
      }
    }
  }
};

// A cache and the memory of its runs. hostrt's device memory is host memory, and its work is complete when the run
// returns.
template <int kPlace = 0>
struct Bench {
  explicit Bench(const Options& options = renting()) : cache(options) {}

  absl::StatusOr<Outcome> run(const Spec& which, const Values& values = {}, std::size_t on = 0) {
    const Job<kPlace> job{&which, state.get(), &calls, &in_fn};
    return which.varying ? cache.run(which.key, streams[on], params(values[0], values[1]), job)
                         : cache.run(which.key, streams[on], job);
  }
  absl::Status warm(const Spec& which, const Values& values = {}, std::size_t on = 0) {
    const Job<kPlace> job{&which, state.get(), &calls, &in_fn};
    return which.varying ? cache.warm(which.key, streams[on], params(values[0], values[1]), job)
                         : cache.warm(which.key, streams[on], job);
  }

  // Makes a run and checks its result.
  absl::StatusOr<Outcome> go(const Spec& which, const Values& values = {}, std::size_t on = 0) {
    apply(which.nodes, values, &wanted);
    absl::StatusOr<Outcome> outcome = run(which, values, on);
    EXPECT_TRUE(right()) << which.name;
    return outcome;
  }
  bool right() const { return std::memcmp(state.get(), &wanted, sizeof wanted) == 0; }

  std::array<Stream, 4> streams;
  Stream& stream = streams[0];
  DeviceBuffer<State> state{1};
  State wanted;   // expected state after the checked runs
  int calls = 0;  // calls of fn
  std::function<void()> in_fn;
  Cache cache;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed * 2654435761u + 12345) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

// The difference between members of a family.
enum class Profile { kOneValue, kValues, kOneGrid, kGrids, kBlocks, kKernels, kMixed, kCount };

inline void vary(std::vector<Node>& nodes, Profile profile, int member, Random& random) {
  std::size_t kernels_seen = 0;
  for (Node& node : nodes) {
    const bool first = !node.sets && kernels_seen++ == 0;
    switch (profile) {
      case Profile::kOneValue:
        if (first) node.value = member;
        break;
      case Profile::kValues:
        node.value = member;
        break;
      case Profile::kOneGrid:
        if (first) node.grid = static_cast<unsigned>(1 + member);
        break;
      case Profile::kGrids:
        node.grid = static_cast<unsigned>(1 + member);
        break;
      case Profile::kBlocks:
        node.block = static_cast<unsigned>(1 + member);
        break;
      case Profile::kKernels:
        node.kernel = member % 2;
        node.value = member / 2;
        break;
      default:
        node.kernel = random.below(2);
        node.grid = static_cast<unsigned>(random.between(1, 2));
        node.block = static_cast<unsigned>(random.between(1, 2));
        node.value = random.below(3);
    }
    // A set has neither.
    if (node.sets) node.kernel = 0, node.grid = node.block = 1;
  }
}

inline std::vector<Spec> family(Profile profile, int members, std::size_t nodes) {
  std::vector<Spec> specs;
  Random unused(0);
  for (int member = 0; member < members; ++member) {
    std::vector<Node> mine(nodes);
    vary(mine, profile, member, unused);
    specs.push_back(spec("member" + std::to_string(member), mine));
  }
  return specs;
}
// A graph with a topology that depends only on the number of nodes.
inline Spec lone(std::size_t nodes) { return spec("lone" + std::to_string(nodes), std::vector<Node>(nodes)); }

inline EntryInfo entry_of(const Bench<>& bench, const Spec& which) {
  for (const EntryInfo& entry : bench.cache.entries()) {
    if (entry.label == which.name) return entry;
  }
  ADD_FAILURE() << "no entry of " << which.name;
  return {};
}

inline Options at_most(int executables, Sharing sharing = Sharing::kUpdates) {
  Options options;
  options.max_executables = executables;
  force(&options, sharing);
  return options;
}

class PolicyTest : public testing::Test {
 protected:
  PolicyTest() { hostrt::reset(); }
  ~PolicyTest() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    CUDA_OK(cudaGetLastError());
    const hostrt::Ledger left = hostrt::ledger();
    EXPECT_EQ(left.executables + left.graphs + left.captures, 0u);
  }
};

}  // namespace graphcache::test
