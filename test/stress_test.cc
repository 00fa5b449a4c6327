// Random operations of many threads on one cache, with failures, against a model that accepts only what some order of
// the operations explains: on hostrt.
//
// Each thread has a lane: a stream, and memory that nobody else's work touches. Keys and executables are shared, and
// reach the lanes' memory by slots, or as siblings. So whatever the threads do to each other, a lane's memory must be
// that of its own runs, each done once, in order, with its own values: that is compared after every run. Outcomes,
// counters and the calls of `fn` are checked against each other, and against what was forgotten when.
//
// A seed decides the cache's options and every operation of every thread, but not how the threads meet.
//   GRAPHCACHE_STRESS_SEED=n   that seed alone, as a failure says
//   GRAPHCACHE_STRESS_SEEDS=n  so many seeds, from that one or from 1
//   GRAPHCACHE_FULL=1          10,000 seeds of 3200 operations
#include <absl/cleanup/cleanup.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "recording.h"
#include "retire.h"
#include "stress_model.h"
#include "support.h"
#include "verify.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define GRAPHCACHE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define GRAPHCACHE_SANITIZED 1
#endif
#endif

namespace graphcache::test::stress {
namespace {

constexpr int kThreads = 16;
constexpr int kOperations = 200;  // Of a thread.
constexpr int kOwnKeys = 2;       // Of a lane.

// Failures that calls of the library, and of `fn`, can have.
struct Failure {
  const char* function;
  cudaError_t error;
};
constexpr Failure kFailures[] = {
    {"cudaGraphInstantiate", cudaErrorMemoryAllocation},
    {"cudaGraphInstantiate", cudaErrorNotSupported},
    {"cudaGraphInstantiate", cudaErrorInvalidValue},
    {"cudaGraphLaunch", cudaErrorMemoryAllocation},
    {"cudaGraphLaunch", cudaErrorInvalidValue},
    {"cudaGraphExecUpdate", cudaErrorGraphExecUpdateFailure},
    {"cudaGraphExecUpdate", cudaErrorMemoryAllocation},
    {"cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue},
    {"cudaGraphExecMemcpyNodeSetParams1D", cudaErrorInvalidValue},
    {"cudaGraphExecMemsetNodeSetParams", cudaErrorInvalidValue},
    {"cudaGraphUpload", cudaErrorMemoryAllocation},
    {"cudaGraphClone", cudaErrorMemoryAllocation},
    {"cudaGraphGetNodes", cudaErrorInvalidValue},
    {"cudaGraphNodeGetType", cudaErrorInvalidValue},
    {"cudaGraphNodeGetDependencies", cudaErrorInvalidValue},
    {"cudaGraphKernelNodeGetParams", cudaErrorInvalidValue},
    {"cudaGraphKernelNodeGetAttribute", cudaErrorInvalidValue},
    {"cudaGraphMemcpyNodeGetParams", cudaErrorInvalidValue},
    {"cudaGraphMemsetNodeGetParams", cudaErrorInvalidValue},
    {"cudaPointerGetAttributes", cudaErrorInvalidValue},
    {"cudaStreamBeginCapture", cudaErrorMemoryAllocation},
    {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated},
    {"cudaStreamEndCapture", cudaErrorMemoryAllocation},
    {"cudaStreamGetCaptureInfo", cudaErrorInvalidValue},
    {"cudaStreamIsCapturing", cudaErrorInvalidValue},
    {"cudaStreamGetDevice", cudaErrorInvalidValue},
    {"cudaGetDevice", cudaErrorInvalidValue},
    {"cudaGetFuncBySymbol", cudaErrorInvalidDeviceFunction},
    {"cudaDeviceGraphMemTrim", cudaErrorInvalidValue},
    {"cudaLaunchKernel", cudaErrorLaunchOutOfResources},
    {"cudaMemcpyAsync", cudaErrorInvalidValue},
    {"cudaMemsetAsync", cudaErrorInvalidValue},
    {"cudaStreamWaitEvent", cudaErrorInvalidResourceHandle},
    {"cudaEventCreateWithFlags", cudaErrorMemoryAllocation},
    {"cudaEventRecord", cudaErrorInvalidValue},
    {"cudaEventQuery", cudaErrorNotReady},
    {"cudaMalloc", cudaErrorMemoryAllocation},
};

// What is done to one cache, as the seed decides.
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
    constexpr Sharing kWays[] = {Sharing::kAuto, Sharing::kAuto, Sharing::kNever, Sharing::kAlways};
    options.sharing = random.of(kWays);
    constexpr int kAfter[] = {0, 0, 0, 1, 3};
    options.capture_after = random.of(kAfter);
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

  bool is_late() const { return defers || holds; }

  const std::uint64_t seed;
  bool gentle;   // Nothing is forgotten, evicted or made to fail.
  bool injects;  // Calls fail,
  bool dies;     // at last by an error that is fatal to the context.
  bool defers;   // Work is done later, in an order drawn by lot.
  bool holds;    // Streams are kept busy.
  int shared_keys, shapes, in_common;
  Options options;
};

// What `fn` of one operation does.
struct Behaviour {
  enum Kind {
    kGood,
    kReturns,  // An error, before a step,
    kThrows,   // an exception,
    kLeaves,   // or nothing, leaving an error in the last-error slot.
    kBreaks,   // Synchronizes, which breaks a capture.
  };
  Kind kind = kGood;
  std::size_t before = 0;
};

struct OnPurpose {};

// The calls of one run's `fn`.
struct Calls {
  bool inlined = false;  // Of a run inside another's capture, which records that one's key.
  int captured = 0;
  int direct = 0;
};

// ---- The world of one seed ----

class World;

// A thread's part.
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
  struct Part {  // Of an operation's effects.
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
  bool adopt_some_of(const std::vector<Part>& parts, std::size_t from);
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
  Memory* memory_ = nullptr;  // On the device: what runs in order on stream_,
  Memory* apart_ = nullptr;   // and what runs on side_.
  Memory expected_{}, expected_apart_{};
  int direct_ = 0;  // Calls of fn of the operation, nested ones included.
  int operation_ = 0;
  std::string doing_;
  bool pinned_recorded_ = false;  // Own key 0 is pinned, and was recorded then,
  std::uint64_t pinned_at_ = 0;   // with so many forgettings begun.
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
  std::atomic<std::uint64_t> cleared{0};  // When the last one began, of the clear()s that are over.
  std::atomic<std::uint64_t> clears_begun{0}, clears_over{0};
  std::atomic<bool> stopped{false};
  std::atomic<bool> dying{false};

 private:
  std::unique_ptr<KeyState> make(const char* label, int number, int lane, bool forks) const {
    const auto shape = plan.seed * 8 + static_cast<std::uint64_t>(number % plan.shapes);
    return std::make_unique<KeyState>(
        key(label, number, lane),
        make_recipe(shape, plan.seed * 100'000 + static_cast<std::uint64_t>(lane * 1000 + number), forks,
                    plan.in_common));
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

// ---- `fn` ----

// Slots where the key is shared, values where it is the lane's own.
template <bool kSlots>
struct Lane::Body {
  Lane& lane;
  KeyState& state;
  const Behaviour& behaviour;
  Calls& calls;
  Nested nested = Nested::kNone;
  Memory* memory = nullptr;
  Values values = {};

  absl::Status operator()(Recorder& rec, Slot<int*> p, Slot<int*> q, Slot<int> a, Slot<unsigned> grid,
                          Slot<std::size_t> bytes) const {
    return enqueue(rec, p, q, a, grid, bytes);
  }
  absl::Status operator()(Recorder& rec) const {
    return enqueue(rec, memory->p, memory->q, values.a, dim3(values.grid), values.bytes);
  }

 private:
  template <class P, class A, class G, class B>
  absl::Status enqueue(Recorder& rec, P p, P q, A a, G grid, B bytes) const {
    if (active_recording == nullptr) {
      ++calls.direct;
      ++lane.direct_;
    } else if (++calls.captured == 1 && !calls.inlined) {
      ++state.capturing;
      ++state.captures;
    }
    if (lane.operation_ % 3 == 0) std::this_thread::yield();  // Others come upon what this run holds.
    if (behaviour.kind == Behaviour::kBreaks) {
      active_recording != nullptr ? (void)cudaStreamSynchronize(rec.stream()) : lane.synchronize();
    }
    for (std::size_t i = 0; i <= state.recipe.size(); ++i) {
      if (i == behaviour.before) {
        if (behaviour.kind == Behaviour::kReturns) return absl::AbortedError("on purpose");
        if (behaviour.kind == Behaviour::kThrows) throw OnPurpose();
        if (behaviour.kind == Behaviour::kLeaves) {
          (void)launch(do_nothing, dim3(0), dim3(1), rec.stream());
          return absl::OkStatus();
        }
      }
      if (i == 1 || (i == 0 && state.recipe.size() == 0)) {
        if (absl::Status status = lane.run_nested(nested, rec.stream()); !status.ok()) return status;
      }
      if (i == state.recipe.size()) break;
      if (const cudaError_t error = step(rec, state.recipe[i], p, q, a, grid, bytes); error != cudaSuccess) {
        return detail::fn_failure(error);
      }
    }
    return absl::OkStatus();
  }

  template <class P, class A, class G, class B>
  cudaError_t step(Recorder& rec, const Step& step, P p, P q, A a, G grid, B bytes) const {
    const LaunchShape shape(dim3(step.grid), dim3(kBlock));
    switch (step.kind) {
      case Step::kBlend:
        rec.launch(blend, shape, p, kSize, step.factor, a);
        break;
      case Step::kBlendOtherwise:
        rec.launch(blend_otherwise, shape, p, kSize, step.factor, a);
        break;
      case Step::kBlendIn:
        rec.launch(blend_in, shape, p, q, kSize, step.factor);
        break;
      case Step::kSet:
        rec.memset(q, a, bytes);
        break;
      case Step::kCopy:
        rec.memcpy(q, p, bytes);
        break;
      case Step::kGrid:
        rec.launch(blend, {grid, dim3(kBlock)}, q, kSize, step.factor, step.constant);
        break;
      case Step::kNothing:
        rec.launch(do_nothing, shape);
        break;
      case Step::kFork: {
        cudaError_t error = cudaEventRecord(lane.fork_, rec.stream());
        if (error == cudaSuccess) error = cudaStreamWaitEvent(lane.side_, lane.fork_, 0);
        if (error != cudaSuccess) return error;
        rec.on(lane.side_).launch(blend, shape, q, kSize, step.factor, a);
        error = cudaEventRecord(lane.join_, lane.side_);
        return error != cudaSuccess ? error : cudaStreamWaitEvent(rec.stream(), lane.join_, 0);
      }
    }
    return cudaSuccess;
  }
};

// ---- Operations ----

Lane::Lane(World& world, int number)
    : world_(world), number_(number), device_(number % 4 == 3 ? 1 : 0), stream_(own_stream_) {
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory_), sizeof(Memory)));
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&apart_), sizeof(Memory)));
  *memory_ = *apart_ = {};
}

Lane::~Lane() {
  cudaFree(memory_);
  cudaFree(apart_);
}

void Lane::fail(const std::string& what) {
  world_.fail("thread " + std::to_string(number_) + ", operation " + std::to_string(operation_) + ", " + doing_ + ": " +
              what);
}

void Lane::work() {
  CUDA_OK(cudaSetDevice(device_));
  for (operation_ = 0; operation_ < kOperations && !world_.stopped; ++operation_) {
    operate(Random(world_.plan.seed, static_cast<std::uint64_t>(number_), static_cast<std::uint64_t>(operation_)));
    ++operations;
    expect_left_alone();
  }
}

void Lane::operate(Random random) {
  const Plan& plan = world_.plan;
  if (plan.injects && random.one_in(6)) {
    const Failure& failure = random.of(kFailures);
    hostrt::fail_call(failure.function, 1 + random.below(4), failure.error, 1 + random.below(2));
  }
  if (plan.dies && operation_ == kOperations / 2 && number_ == 0) {
    world_.dying = true;
    hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  }
  if (plan.holds && random.one_in(8)) hostrt::hold(stream_);
  if (device_ == 0 && random.one_in(32)) {
    synchronize();
    stream_ = stream_ == cudaStreamPerThread ? static_cast<cudaStream_t>(own_stream_) : cudaStreamPerThread;
  }
  if (random.one_in(8)) std::this_thread::yield();
  if (random.one_in(64)) {
    if (const std::string fault = Verifier::find_fault(world_.cache); !fault.empty()) fail(fault);
  }
  const int what = random.below(100);
  const auto one_of = [&](int below, const char* name, void (Lane::*operation)(Random&)) {
    if (what >= below) return false;
    doing_ = name;
    (this->*operation)(random);
    return true;
  };
  one_of(66, "run", &Lane::run) || one_of(86, "run of its own key", &Lane::run_own) ||
      one_of(90, "warm", &Lane::warm) || one_of(93, "forget", &Lane::forget) || one_of(96, "pin", &Lane::pin) ||
      one_of(100, "look", &Lane::look);
}

Values Lane::random_values(Random& random) const {
  Values values;
  values.a = random.below(5);
  values.grid = static_cast<unsigned>(1 + random.below(2));
  // A capture with a size of 0 is not kept.
  values.bytes = static_cast<std::size_t>(world_.plan.gentle ? 1 + random.below(31) : random.below(32));
  return values;
}

Behaviour random_behaviour(Random& random, const Plan& plan) {
  Behaviour behaviour;
  if (plan.gentle || !random.one_in(10)) return behaviour;
  constexpr Behaviour::Kind kKinds[] = {Behaviour::kReturns, Behaviour::kThrows, Behaviour::kLeaves,
                                        Behaviour::kBreaks};
  behaviour.kind = random.of(kKinds);
  behaviour.before = static_cast<std::size_t>(random.below(2));
  return behaviour;
}

void Lane::run(Random& random) {
  KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const Values values = random_values(random);
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  settle(call(state, stream_, values, behaviour), {{&state.recipe, values, &Lane::expected_}}, behaviour);
}

// A graph that holds this lane's memory; its siblings are those of other lanes.
void Lane::run_own(Random& random) {
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  const int which = random.below(kOwnKeys + 1);
  const auto number = static_cast<std::size_t>(number_);
  if (which < kOwnKeys) {
    KeyState& state = *world_.own[number * kOwnKeys + static_cast<std::size_t>(which)];
    const Values values{which, 2, 8};
    const std::uint64_t forgettings = forgettings_begun(state);
    const int captures = state.captures;
    const auto outcome = call_own(state, stream_, values, memory_, behaviour, Nested::kNone);
    if (which == 0 && pinned_recorded_ && forgettings == pinned_at_ && forgettings_begun(state) == pinned_at_ &&
        state.captures != captures && !world_.plan.injects) {
      fail("a pinned key was captured again");
    }
    return settle(outcome, {{&state.recipe, values, &Lane::expected_}}, behaviour);
  }
  // One that makes another run after its first step.
  const int kind = world_.plan.gentle ? 0 : random.below(3);  // The others keep it from being captured.
  KeyState& state = *world_.outer[number * 3 + static_cast<std::size_t>(kind)];
  const Values values{5, 1, 12};
  const Recipe first(state.recipe.begin(), state.recipe.begin() + 1),
      rest(state.recipe.begin() + 1, state.recipe.end());
  std::vector<Part> parts = {{&first, values, &Lane::expected_}};
  const Nested nested[] = {Nested::kInlined, Nested::kWithParams, Nested::kElsewhere};
  switch (nested[kind]) {
    case Nested::kInlined:
      parts.push_back({&world_.own[number * kOwnKeys + 1]->recipe, Values{1, 2, 8}, &Lane::expected_});
      break;
    case Nested::kWithParams:
      parts.push_back({&world_.shared[0]->recipe, Values{3, 2, 8}, &Lane::expected_});
      break;
    default:
      parts.push_back({&world_.apart[number]->recipe, Values{4, 1, 16}, &Lane::expected_apart_});
  }
  parts.push_back({&rest, values, &Lane::expected_});
  settle(call_own(state, stream_, values, memory_, behaviour, nested[kind]), parts, behaviour);
}

absl::Status Lane::run_nested(Nested nested, cudaStream_t stream) {
  static constexpr Behaviour kGood;
  const auto number = static_cast<std::size_t>(number_);
  switch (nested) {
    case Nested::kNone:
      return absl::OkStatus();
    case Nested::kInlined:
      return call_own(*world_.own[number * kOwnKeys + 1], stream, {1, 2, 8}, memory_, kGood, Nested::kNone).status();
    case Nested::kWithParams:
      return call(*world_.shared[0], stream, {3, 2, 8}, kGood).status();
    case Nested::kElsewhere:
      return call_own(*world_.apart[number], side_, {4, 1, 16}, apart_, kGood, Nested::kNone).status();
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> Lane::call(KeyState& state, cudaStream_t stream, const Values& values,
                                   const Behaviour& behaviour) {
  Calls calls;
  return checked(state, behaviour, calls, [&] {
    return world_.cache.run(state.key, stream, params(+memory_->p, +memory_->q, values.a, values.grid, values.bytes),
                            Body<true>{*this, state, behaviour, calls});
  });
}

absl::StatusOr<Outcome> Lane::call_own(KeyState& state, cudaStream_t stream, const Values& values, Memory* memory,
                                       const Behaviour& behaviour, Nested nested) {
  Calls calls;
  return checked(state, behaviour, calls, [&] {
    return world_.cache.run(state.key, stream, Body<false>{*this, state, behaviour, calls, nested, memory, values});
  });
}

// One run: what it says that it did, against the calls of `fn` and what is known of the key.
template <class Run>
absl::StatusOr<Outcome> Lane::checked(KeyState& state, const Behaviour& behaviour, Calls& calls, Run&& run) {
  const bool inside = active_recording != nullptr;
  doing_ += " " + state.key.to_string();
  const std::uint64_t forgotten = std::max(state.forgotten.load(), world_.cleared.load());
  calls.inlined = inside;
  const absl::Cleanup over = [&] {
    if (calls.captured == 0 || inside) return;
    raise(state.captured, ++world_.clock);
    --state.capturing;
  };
  absl::StatusOr<Outcome> outcome = absl::AbortedError("on purpose");
  bool thrown = false;
  try {
    outcome = run();
  } catch (const OnPurpose&) {
    thrown = true;
  }
  if (!inside) captures_begun += static_cast<std::uint64_t>(calls.captured);
  if (!outcome.ok()) {
    ++failed;
    const absl::Status& status = outcome.status();
    if (calls.captured > 1 || calls.direct > 1) fail("fn was called too often by a run that failed");
    const bool wanted = behaviour.kind == Behaviour::kReturns || behaviour.kind == Behaviour::kThrows ||
                        behaviour.kind == Behaviour::kLeaves;
    const bool called = calls.captured + calls.direct != 0;
    const bool in_broken_capture = inside && is_capture_error(cuda_error(status));
    if (!world_.plan.injects && !(wanted && called) && !in_broken_capture) fail("a run failed: " + status.ToString());
    const bool typed = cuda_error(status) != cudaSuccess || absl::IsAborted(status);
    if (!typed || (!thrown && !mentions(status, std::string(state.key.label())))) {
      fail("an error does not say what failed: " + status.ToString());
    }
    return outcome;
  }
  ++outcomes[static_cast<std::size_t>(*outcome)];
  doing_ += std::string(" ") + to_string(*outcome);
  const auto wrong = [&](const char* what) { fail(std::string("a run ") + to_string(*outcome) + ", and " + what); };
  switch (*outcome) {
    case Outcome::kReplayed:
    case Outcome::kPatched:
    case Outcome::kSwitched:
    case Outcome::kRestored:
      if (calls.captured + calls.direct != 0) wrong("fn was called");
      if (!may_be_recorded(state, forgotten)) wrong("nobody had recorded the key since it was forgotten");
      break;
    case Outcome::kUpdated:
    case Outcome::kInstantiated:
      if (calls.captured != 1 || calls.direct != 0) wrong("fn was not called once, under capture");
      break;
    case Outcome::kEager:
      if (calls.captured > 1 || calls.direct != 1) wrong("fn was not called once directly");
      break;
    case Outcome::kInlined:
      if (!inside || calls.direct != 0 || calls.captured > 1) wrong("it was in no capture");
      break;
  }
  if (inside != (*outcome == Outcome::kInlined)) wrong("it was not inlined");
  return outcome;
}

// Brings the model to what the operation has done, and compares.
void Lane::settle(const absl::StatusOr<Outcome>& result, const std::vector<Part>& parts, const Behaviour& behaviour) {
  const int direct = std::exchange(direct_, 0);
  if (result.ok()) {
    for (const Part& part : parts) {
      for (const Step& step : *part.recipe) apply(step, part.values, &(this->*part.expected));
    }
    if (!world_.plan.is_late() || operation_ % 4 == 0) compare("after a run");
    return;
  }
  // None of the work was launched by the cache; what `fn` enqueued directly before it failed was. Where calls are made
  // to fail, that is up to any step; a run that `fn` made goes on then.
  if (direct != 0) {
    synchronize();
    if (!world_.plan.injects && parts.size() == 1) {
      for (std::size_t i = 0; i < behaviour.before; ++i) apply((*parts[0].recipe)[i], parts[0].values, &expected_);
    } else {
      adopt_some_of(parts, 0);
    }
  }
  compare(("after a run that failed (" + result.status().ToString() + ")").c_str());
}

// True, and the model is brought there, if the memory is what the first steps of each part leave.
bool Lane::adopt_some_of(const std::vector<Part>& parts, std::size_t from) {
  if (from == parts.size()) {
    return std::memcmp(&expected_, memory_, sizeof(Memory)) == 0 &&
           std::memcmp(&expected_apart_, apart_, sizeof(Memory)) == 0;
  }
  const Part& part = parts[from];
  const Memory before = this->*part.expected;
  Memory reached = before;
  for (std::size_t i = 0;; ++i) {
    this->*part.expected = reached;
    if (adopt_some_of(parts, from + 1)) return true;
    if (i == part.recipe->size()) break;
    apply((*part.recipe)[i], part.values, &reached);
  }
  this->*part.expected = before;
  return false;
}

void Lane::synchronize() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // Nobody's capture is to break by this.
  while (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
  }
  for (const cudaStream_t stream : {stream_, static_cast<cudaStream_t>(side_)}) {
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) fail(std::string("a stream cannot be waited for: ") + cudaGetErrorName(error));
    if (error != cudaSuccess) cudaGetLastError();
  }
  while (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
  }
}

void Lane::compare(const char* when) {
  if (world_.plan.is_late()) synchronize();
  const auto text = [](const Memory& memory) {
    std::string values;
    for (const int value : memory.p) values += std::to_string(value) + " ";
    values += "| ";
    for (const int value : memory.q) values += std::to_string(value) + " ";
    return values;
  };
  if (std::memcmp(&expected_, memory_, sizeof(Memory)) != 0) {
    fail(std::string(when) + " memory holds " + text(*memory_) + ", wanted " + text(expected_));
  }
  if (std::memcmp(&expected_apart_, apart_, sizeof(Memory)) != 0) {
    fail(std::string(when) + " memory apart holds " + text(*apart_) + ", wanted " + text(expected_apart_));
  }
}

void Lane::warm(Random& random) {
  KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const Values values = random_values(random);
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  Calls calls;
  const absl::Cleanup over = [&] {
    captures_begun += static_cast<std::uint64_t>(calls.captured);
    if (calls.direct != 0 || calls.captured > 1) fail("warm called fn too often");
    direct_ = 0;
    if (calls.captured == 0) return;
    raise(state.captured, ++world_.clock);
    --state.capturing;
  };
  absl::Status status = absl::AbortedError("on purpose");
  try {
    status =
        world_.cache.warm(state.key, stream_, params(+memory_->p, +memory_->q, values.a, values.grid, values.bytes),
                          Body<true>{*this, state, behaviour, calls});
  } catch (const OnPurpose&) {
  }
  if (status.ok()) return compare("after a warm");
  ++failed;
  const bool wanted = behaviour.kind != Behaviour::kGood || values.bytes == 0 ||
                      world_.plan.options.capture_mode == cudaStreamCaptureModeGlobal;
  if (!world_.plan.injects && !wanted) fail("a warm failed: " + status.ToString());
  compare("after a warm that failed");
}

std::uint64_t Lane::forgettings_begun(const KeyState& state) const {
  return world_.clears_begun + state.erasures_begun;
}

void Lane::forget(Random& random) {
  if (world_.plan.gentle) return;
  if (random.one_in(20)) {
    ++world_.clears_begun;
    const std::uint64_t begin = ++world_.clock;
    world_.cache.clear();
    raise(world_.cleared, begin);
    ++world_.clears_over;
    return;
  }
  KeyState& state = random.one_in(2) ? *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))]
                                     : *world_.own[static_cast<std::size_t>(random.below(kThreads * kOwnKeys))];
  ++state.erasures_begun;
  const std::uint64_t begin = ++world_.clock;
  world_.cache.erase(state.key);
  raise(state.forgotten, begin);
  ++state.erasures_over;
}

void Lane::pin(Random& random) {
  KeyState& mine = *world_.own[static_cast<std::size_t>(number_ * kOwnKeys)];
  KeyState& shared = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const int what = random.below(6);
  if (what == 0) {
    world_.cache.pin(shared.key);
  } else if (what <= 2) {
    world_.cache.unpin(shared.key);
  } else if (what == 3) {
    pinned_recorded_ = false;
    world_.cache.unpin(mine.key);
  } else {
    const std::uint64_t over = world_.clears_over + mine.erasures_over;
    const std::uint64_t forgettings = forgettings_begun(mine);
    const bool pinned = world_.cache.pin(mine.key);
    pinned_recorded_ = world_.cache.contains(mine.key) && pinned && forgettings == over;
    pinned_at_ = forgettings;
  }
}

void Lane::look(Random& random) {
  const int what = random.below(4);
  if (what <= 1) {
    KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
    const bool recorded = state.captures == 1 && state.capturing == 0;
    const std::uint64_t forgotten = std::max(state.forgotten.load(), world_.cleared.load());
    const bool contained = world_.cache.contains(state.key);
    if (contained && !may_be_recorded(state, forgotten)) fail("a key is contained that nobody had recorded");
    if (world_.plan.gentle && recorded && !contained) fail("a recorded key is not contained");
  } else if (what == 2) {
    const Stats stats = world_.cache.stats();
    std::uint64_t mine = failed;
    for (const std::uint64_t count : outcomes) mine += count;
    if (stats.runs() < mine) fail("the counters lack runs that are over");
    if (stats.live_executables > static_cast<std::uint64_t>(world_.plan.options.max_executables)) {
      fail("there are too many executables");
    }
  } else {
    const std::vector<EntryInfo> entries = world_.cache.entries();
    std::size_t live = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      live += entries[i].live;
      if (entries[i].last_use_order != i) fail("entries are not in order of use");
      if (entries[i].live && !entries[i].recorded) fail("an entry is live and not recorded");
    }
    if (live > static_cast<std::size_t>(world_.plan.options.max_executables)) fail("too many entries are live");
  }
}

// Law 4. Failures may be injected into the questions, too.
void Lane::expect_left_alone() {
  if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) {
    fail(std::string("an error was left behind: ") + cudaGetErrorName(error));
    cudaGetLastError();
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    fail("the stream was left capturing");
  }
  int device = device_;
  if (cudaGetDevice(&device) == cudaSuccess && device != device_) fail("the current device was left another");
  if (operation_ % 8 == 0 && thread_capture_mode() != cudaStreamCaptureModeGlobal) {
    fail("the thread's capture mode was left another");
  }
  cudaGetLastError();
}

void Lane::finish() {
  synchronize();
  compare("at the end");
}

// ---- A seed from begin to end ----

void World::run() {
  std::vector<std::thread> threads;
  std::atomic<int> missing{kThreads};
  for (auto& lane : lanes) {
    threads.emplace_back([&] {
      --missing;
      while (missing > 0) std::this_thread::yield();
      lane->work();
      lane->finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  hostrt::clear_failures();
  if (stopped) return;
  check_counters();
  check_what_is_left();
}

void World::check_counters() {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::uint64_t failed = 0, captures = 0;
  for (const auto& lane : lanes) {
    for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i] += lane->outcomes[i];
    failed += lane->failed;
    captures += lane->captures_begun;
  }
  const Stats stats = cache.stats();
  if (stats.outcomes != outcomes) fail("the outcomes are not those that the runs returned");
  if (stats.failed != failed) fail("the failed runs are not those that failed");
  if (plan.injects) return;
  if (stats.captures + stats.capture_failures != captures) fail("captures are not the calls of fn under capture");
  if (!plan.gentle) return;
  if (stats.capture_failures != 0 || stats.evictions != 0 || stats.forgotten != 0) {
    fail("something left or failed, though there was room for everything");
  }
  std::uint64_t captured_keys = 0;
  for_each_key([&](const KeyState& state) {
    captured_keys += state.captures != 0;
    if (state.captures > 1) fail("a key was captured twice: " + state.key.to_string());
  });
  if (stats.captures != captured_keys) fail("captures are not the keys that were captured");
}

// Of the cache, of the objects of the runtime, after everything is over.
void World::check_what_is_left() {
  if (const std::string fault = Verifier::find_fault(cache); !fault.empty()) fail(fault);
  if (dying) return;  // Handles are dropped.
  for_each_key([&](const KeyState& state) { cache.unpin(state.key); });
  const Stream stream;
  (void)cache.run(key("last"), stream, [](cudaStream_t) {});
  (void)cache.warm(key("last of all"), stream, [](cudaStream_t) {});
  Retire::of_process().collect_all();
  const Stats stats = cache.stats();
  if (stats.live_templates > std::max<std::uint64_t>(stats.live_executables, plan.options.max_templates)) {
    fail("more templates are kept than the options allow");
  }
  const hostrt::Ledger ledger = hostrt::ledger();
  if (ledger.executables != stats.live_executables) fail("executables are alive that the cache does not know");
  if (ledger.graphs < stats.live_templates || ledger.graphs > stats.live_templates + stats.live_executables) {
    fail("graphs are alive that are nobody's");
  }
  cache.clear();
  const hostrt::Ledger after = hostrt::ledger();
  if (after.executables + after.graphs + after.captures != 0) fail("the cache left something behind");
  if (cache.stats().live_templates + cache.stats().families != 0) fail("a cleared cache holds something");
}

// ---- Seeds ----

volatile std::sig_atomic_t current_seed = 0;

void say_seed_and_die(int signal) {
  char text[128];
  const int size = std::snprintf(text, sizeof text, "\n%s, to replay: GRAPHCACHE_STRESS_SEED=%ld\n",
                                 signal == SIGALRM ? "the seed hangs" : "the seed ended the process",
                                 static_cast<long>(current_seed));
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<std::size_t>(size));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

void add(Stats* all, const Stats& stats) {
  for (std::size_t i = 0; i < stats.outcomes.size(); ++i) all->outcomes[i] += stats.outcomes[i];
  for (std::size_t i = 0; i < stats.eager_reasons.size(); ++i) all->eager_reasons[i] += stats.eager_reasons[i];
  for (std::size_t i = 0; i < stats.refused_updates.size(); ++i) all->refused_updates[i] += stats.refused_updates[i];
  all->failed += stats.failed;
  all->captures += stats.captures;
  all->capture_failures += stats.capture_failures;
  all->instantiations += stats.instantiations;
  all->updates += stats.updates;
  all->patched_nodes += stats.patched_nodes;
  all->evictions += stats.evictions;
  all->forgotten += stats.forgotten;
  all->capture_time += stats.capture_time;
  all->instantiate_time += stats.instantiate_time;
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(StressTest, EveryResultIsExplainedByAnOrder) {
#if defined(GRAPHCACHE_SANITIZED)
  constexpr std::uint64_t kSeeds = 100;
#else
  constexpr std::uint64_t kSeeds = 600;
#endif
  const std::uint64_t first = number_of("GRAPHCACHE_STRESS_SEED", 1);
  std::uint64_t count = number_of("GRAPHCACHE_FULL", 0) != 0 ? 10'000 : kSeeds;
  if (std::getenv("GRAPHCACHE_STRESS_SEED") != nullptr) count = 1;
  count = number_of("GRAPHCACHE_STRESS_SEEDS", count);
  std::signal(SIGALRM, say_seed_and_die);
  std::signal(SIGABRT, say_seed_and_die);
#if !defined(GRAPHCACHE_SANITIZED)
  std::signal(SIGSEGV, say_seed_and_die);
#endif
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t operations = 0, failures = 0;
  Stats all;
  std::uint64_t seed = first;
  for (; seed < first + count && !HasFailure(); ++seed) {
    current_seed = static_cast<std::sig_atomic_t>(seed);
    alarm(60);
    hostrt::reset();
    hostrt::set_device_count(2);
    const Plan plan(seed);
    if (plan.defers) hostrt::defer(seed);
    {
      World world(plan);
      world.run();
      for (const std::string& fault : world.faults()) ADD_FAILURE() << fault;
      for (const auto& lane : world.lanes) operations += lane->operations;
      const Stats stats = world.cache.stats();
      add(&all, stats);
    }
    failures += hostrt::failures_injected();
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    cudaGetLastError();
    if (HasFailure())
      std::printf("seed %llu, to replay: GRAPHCACHE_STRESS_SEED=%llu\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(seed));
  }
  alarm(0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%llu seeds, %llu operations in %.1f s, %llu failures injected\n%s\n",
              static_cast<unsigned long long>(seed - first), static_cast<unsigned long long>(operations), took.count(),
              static_cast<unsigned long long>(failures), to_string(all).c_str());
}

}  // namespace
}  // namespace graphcache::test::stress
