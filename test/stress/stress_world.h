// One cache of the stress test: the plan that a seed makes, the threads with their lanes, and what they share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "stress_model.h"
#include "support.h"

namespace graphcache::test::stress {

constexpr int kThreads = 16;
constexpr int kOperations = 200;  // of a thread
constexpr int kOwnKeys = 2;       // of a lane

// The number of objects that are alive of those that graphs keep.
inline std::atomic<int> kept_objects{0};

// The seed's choices for one cache.
struct Plan {
  explicit Plan(std::uint64_t the_seed) : seed(the_seed) {
    Random random(seed, 1000, 0);
    gentle = random.one_in(4);
    injects = !gentle && random.one_in(2);
    dies = injects && random.one_in(16);
    defers = random.one_in(2);
    holds = random.one_in(4);
    shared_keys = gentle || random.one_in(2) ? 2 + random.below(10) : 30 + random.below(40);
    shapes = 1 + random.below(4);
    in_common = random.one_in(3) ? 8 : 0;
    constexpr Sharing kWays[] = {Sharing::kAuto, Sharing::kUpdates, Sharing::kNever, Sharing::kUpdatesAcross};
    force(&options, random.of(kWays));
    constexpr int kAfter[] = {0, 0, 0, 1, 3};
    options.capture_after = random.of(kAfter);
    draw_tables();
    if (gentle) {
      options.max_executables = 512;
      return;
    }
    constexpr int kExecutables[] = {1, 2, 4, 8, 16, 20, 24, 64};
    options.max_executables = random.one_in(32) ? 0 : random.of(kExecutables);
    constexpr int kTemplates[] = {0, 3, 8, 24, 512, 512};
    options.max_templates = random.of(kTemplates);
    constexpr std::size_t kBytes[] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, 2'000'000, 120'000};
    options.max_device_bytes = random.of(kBytes);
    constexpr cudaStreamCaptureMode kModes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeThreadLocal,
                                                cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeGlobal};
    options.capture_mode = random.of(kModes);
  }

  void draw_tables() {
    Random random(seed, 1001, 0);
    same_kernels = !random.one_in(3);
    if (same_kernels && !random.one_in(4)) force(&options, Sharing::kTable);
    if (random.one_in(4)) options.share = Share::kAlways;
    constexpr Patching kPatchings[] = {Patching::kAuto, Patching::kAuto, Patching::kPerNode, Patching::kDeviceUpdated};
    force(random.of(kPatchings));
  }

  bool is_late() const { return defers || holds; }

  const std::uint64_t seed;
  bool gentle;        // nothing is forgotten, evicted or made to fail
  bool injects;       // calls fail
  bool dies;          // a failure destroys the context
  bool defers;        // work is deferred and runs in random order
  bool holds;         // streams are kept busy
  bool same_kernels;  // siblings differ only in arguments and grids
  int shared_keys, shapes, in_common;
  Options options;
};

// The behaviour of one operation's `fn`.
struct Behaviour {
  enum Kind {
    kGood,
    kReturns,  // returns an error before a step
    kThrows,   // throws an exception before a step
    kLeaves,   // leaves an error in the last-error slot before a step
    kBreaks,   // synchronizes, which breaks a capture
  };
  Kind kind = kGood;
  std::size_t before = 0;
};

Behaviour random_behaviour(Random& random, const Plan& plan);

// Thrown by `fn`.
struct OnPurpose {};

// The calls of one run's `fn`.
struct Calls {
  bool inlined = false;  // of a run inside another's capture, which records that one's key
  int captured = 0;
  int direct = 0;
};

class World;

// The work of one thread.
class Lane {
 public:
  Lane(World& world, int number);
  ~Lane();

  void work();
  void finish();

  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::uint64_t failed = 0;
  std::uint64_t captures_begun = 0;
  std::uint64_t operations = 0;

 private:
  friend class World;
  template <bool kSlots>
  struct Body;
  struct Part {  // part of an operation's effects
    const Recipe* recipe;
    Values values;
    Memory Lane::*expected;
  };
  enum class Nested { kNone, kInlined, kWithParams, kElsewhere };

  void operate(Random random);
  void run(Random& random);
  void run_own(Random& random);
  void warm(Random& random);
  void forget(Random& random);
  void pin(Random& random);
  void look(Random& random);

  absl::StatusOr<Outcome> call(KeyState& state, cudaStream_t stream, const Values& values, const Behaviour& behaviour);
  absl::StatusOr<Outcome> call_own(KeyState& state, cudaStream_t stream, const Values& values, Memory* memory,
                                   const Behaviour& behaviour, Nested nested);
  template <class Run>
  absl::StatusOr<Outcome> checked(KeyState& state, const Behaviour& behaviour, Calls& calls, Run&& run);
  absl::Status run_nested(Nested nested, cudaStream_t stream);
  void settle(const absl::StatusOr<Outcome>& result, const std::vector<Part>& parts, const Behaviour& behaviour);
  bool take_some_of(const std::vector<Part>& parts, std::size_t from);
  void compare(const char* when);
  void synchronize();
  void expect_left_alone();
  void fail(const std::string& what);
  std::uint64_t forgettings_begun(const KeyState& state) const;
  Values random_values(Random& random) const;

  World& world_;
  const int number_;
  const int device_;
  Stream own_stream_, side_;
  Event fork_, join_;
  cudaStream_t stream_;
  Memory* memory_ = nullptr;  // device memory of the work that runs in order on stream_
  Memory* apart_ = nullptr;   // device memory of the work that runs on side_
  Memory expected_{}, expected_apart_{};
  int direct_ = 0;  // calls of fn in the operation, nested ones included
  int operation_ = 0;
  std::string doing_;
  bool pinned_recorded_ = false;  // whether own key 0 is pinned and was recorded when it was pinned
  std::uint64_t pinned_at_ = 0;   // number of forgettings that had begun then
};

class World {
 public:
  explicit World(const Plan& the_plan) : plan(the_plan) {
    for (int i = 0; i < plan.shared_keys; ++i) shared.push_back(make("shared", i, -1, true));
    for (int lane = 0; lane < kThreads; ++lane) {
      for (int i = 0; i < kOwnKeys; ++i) own.push_back(make("own", i, lane, true));
      for (int i = 0; i < 3; ++i) outer.push_back(make("outer", i, lane, false));
      apart.push_back(make("apart", 0, lane, false));
    }
    for (int i = 0; i < kThreads; ++i) lanes.push_back(std::make_unique<Lane>(*this, i));
  }

  void run();
  void fail(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (faults_.size() < 5) faults_.push_back(what);
    stopped = true;
  }
  std::vector<std::string> faults() const { return faults_; }

  const Plan plan;
  Cache cache{plan.options};
  std::vector<std::unique_ptr<KeyState>> shared, own, outer, apart;
  std::vector<std::unique_ptr<Lane>> lanes;
  Clock clock{1};
  std::atomic<std::uint64_t> cleared{0};  // begin of the last completed clear()
  std::atomic<std::uint64_t> clears_begun{0}, clears_over{0};
  std::atomic<bool> stopped{false};
  std::atomic<bool> dying{false};

 private:
  std::unique_ptr<KeyState> make(const char* label, int number, int lane, bool forks) const {
    const auto shape = plan.seed * 8 + static_cast<std::uint64_t>(number % plan.shapes);
    return std::make_unique<KeyState>(
        key(label, number, lane),
        make_recipe(shape, plan.seed * 100'000 + static_cast<std::uint64_t>(lane * 1000 + number), forks,
                    plan.in_common, plan.same_kernels));
  }
  void check_counters();
  void check_what_is_left();
  template <class F>
  void for_each_key(F&& f) {
    for (auto* keys : {&shared, &own, &outer, &apart}) {
      for (auto& state : *keys) f(*state);
    }
  }

  std::mutex mutex_;
  std::vector<std::string> faults_;
};

}  // namespace graphcache::test::stress
