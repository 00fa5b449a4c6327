// Shared by the fault suites: a world whose work shows how often and with which values it was done; a list of scenarios
// that contains every operation of a cache; and the checks after a scenario with a failure.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/body.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

inline void append_in_each(int* log, int* count, int value) { log[(*count)++] = value; }
GRAPHCACHE_HOST_KERNEL(append_in_each)

inline void append_pointed(int* log, int* count, const int* value) { log[(*count)++] = *value; }
GRAPHCACHE_HOST_KERNEL(append_pointed)

// So many parameters that the pointers to its arguments are not kept on the stack.
inline constexpr int kManyParameters = 70;
template <class>
struct Many;
template <std::size_t... I>
struct Many<std::index_sequence<I...>> {
  template <std::size_t>
  using Int = int;
  static void append_sum(int* log, int* count, int value, Int<I>... others) {
    log[(*count)++] = (value + ... + others);
  }
  static void launch(Recorder& rec, int* log, int* count, Slot<int> value) {
    rec.launch(append_sum, {1, 1}, log, count, value, static_cast<int>(I * 0 + 1)...);
  }
};
using ManyArguments = Many<std::make_index_sequence<kManyParameters>>;
GRAPHCACHE_HOST_KERNEL(ManyArguments::append_sum)

// The work of a key: launches of append_in_each() after those that follow the run's value.
struct Work {
  struct Launch {
    int number;
    unsigned grid;  // number of times that it is appended
  };
  enum class Inner { kNone, kPlain, kWithValues };

  Key key;
  std::vector<Launch> launches = {{-1, 1}};
  bool pointed = false;        // append_pointed() follows the launches
  bool many = false;           // append_sum() follows append_pointed()
  Inner inner = Inner::kNone;  // a run of another key follows at the end of this one's fn
  bool conditional = false;    // two rounds of a loop, with a condition in it, follow the launches
};

// Thrown by fn; a type that the library does not throw.
struct ThrownByFn : std::runtime_error {
  ThrownByFn() : runtime_error("") {}
};
struct OutOfMemoryInFn : std::bad_alloc {};

struct World {
  static constexpr unsigned kRounds = 2;

  explicit World(const ForcedOptions& options = {})
      : patches_by_device(options.mechanisms.patching == Patching::kDeviceUpdated),
        cache(std::in_place, options.again()) {
    mechanisms_of_new_caches = {};
    attempts.reserve(16);
  }

  struct Run {
    const Work& work;
    int value;
  };
  // A run, or another operation if it has no work.
  struct Attempt {
    const Work* work;
    int value;
    absl::Status status;
    std::optional<Outcome> outcome;
  };

  // One type, so that run() and warm() are at one place of the program.
  struct Fn {
    World& world;
    const Work& work;
    int value;
    absl::Status operator()(Recorder& rec, Slot<int> v) const { return world.enqueue(work, value, rec, v); }
  };

  // Sets `set` to bytes of `value`, copies them to `copy`, appends `value` to the log, then what the work appends.
  // Allocates nothing, as fn should not.
  absl::StatusOr<Outcome> run(const Work& work, int value) {
    return cache->run(work.key, on(), params(value), Fn{*this, work, value});
  }
  absl::StatusOr<Outcome> run(const Key& which, int value) { return run(Work{which}, value); }

  // The same as an attempt.
  void attempt(const Work& work, int value) {
    Attempt& made = attempts.emplace_back(Attempt{&work, value, {}, {}});
    try {
      const absl::StatusOr<Outcome> done = run(work, value);
      made.status = done.status();
      if (done.ok()) made.outcome = *done;
    } catch (const ThrownByFn&) {
      made.status = absl::AbortedError("");
    } catch (const OutOfMemoryInFn&) {
      made.status = absl::AbortedError("");
    } catch (const std::bad_alloc&) {
      ADD_FAILURE() << "the library threw";
    }
  }
  void warm(const Work& work, int value) {
    Attempt& made = attempts.emplace_back(Attempt{nullptr, 0, {}, {}});
    made.status = cache->warm(work.key, on(), params(value), Fn{*this, work, value});
  }

  absl::Status enqueue(const Work& work, int value, Recorder& rec, Slot<int> v) {
    ++calls;
    if (in_fn) in_fn();
    rec.memset(set.get(), v, set.bytes());
    rec.memcpy(copy.get(), set.get(), v);
    rec.launch(append, {1, 1}, log.get(), count.get(), v);
    for (const Work::Launch& one : work.launches) {
      rec.launch(append_in_each, {one.grid, 1}, log.get(), count.get(), one.number);
    }
    if (work.conditional) enqueue_loop(rec);
    if (work.pointed) {
      rec.write(pointed.get(), v);
      rec.launch(append_pointed, {1, 1}, log.get(), count.get(), pointed.get());
    }
    if (work.many) ManyArguments::launch(rec, log.get(), count.get(), v);
    if (work.inner == Work::Inner::kNone) return fn_status;
    const auto append_nine = [&](Recorder& inner, auto number) {
      inner.launch(append_in_each, {1, 1}, log.get(), count.get(), number);
    };
    static const Key inner_key = key("inner");
    if (work.inner == Work::Inner::kPlain) {
      return cache->run(inner_key, on(), [&](Recorder& inner) { append_nine(inner, -9); }).status();
    }
    return cache->run(inner_key, on(), params(value), [&](Recorder& inner, Slot<int> w) { append_nine(inner, w); })
        .status();
  }

  void enqueue_loop(Recorder& rec) {
    rec.launch(store, {1, 1}, condition.get(), kRounds);
    while_node(rec, condition.get(), [this](Body& body) {
      body.launch(append_in_each, {1, 1}, log.get(), count.get(), -21);
      if_node(body, condition.get(), [this](Body& inner) {
        inner.launch(append_in_each, {1, 1}, log.get(), count.get(), -22);
      });
      body.launch(count_down, {1, 1}, condition.get());
    });
  }

  static std::vector<int> appended(const Run& run) {
    std::vector<int> all{run.value};
    for (const Work::Launch& one : run.work.launches) all.insert(all.end(), one.grid, one.number);
    for (unsigned i = 0; run.work.conditional && i < kRounds; ++i) all.insert(all.end(), {-21, -22});
    if (run.work.pointed) all.push_back(run.value);
    if (run.work.many) all.push_back(run.value + kManyParameters);
    if (run.work.inner != Work::Inner::kNone) all.push_back(run.work.inner == Work::Inner::kPlain ? -9 : run.value);
    return all;
  }

  // Expects that exactly the work of these runs was done, in this order.
  void expect_runs(const std::vector<Run>& runs) {
    std::vector<int> wanted;
    std::vector<unsigned char> wanted_copy(16);
    for (const Run& run : runs) {
      const std::vector<int> all = appended(run);
      wanted.insert(wanted.end(), all.begin(), all.end());
      std::fill_n(wanted_copy.begin(), run.value, static_cast<unsigned char>(run.value));
    }
    EXPECT_EQ(done(), wanted);
    EXPECT_EQ(copy.read(), wanted_copy);
  }
  void expect_done(const std::vector<int>& values) {
    static const Work plain;
    std::vector<Run> runs;
    for (const int value : values) runs.push_back({plain, value});
    expect_runs(runs);
  }
  // Expects that the work of successful attempts was done, and of the others nothing, or what fn had enqueued directly
  // before it failed.
  void expect_attempts() {
    std::vector<Run> runs;
    bool all_ok = true;
    for (const Attempt& made : attempts) {
      all_ok = all_ok && made.status.ok();
      if (made.work != nullptr) runs.push_back({*made.work, made.value});
    }
    if (all_ok) return expect_runs(runs);
    std::vector<const Attempt*> made;
    for (const Attempt& one : attempts) {
      if (one.work != nullptr) made.push_back(&one);
    }
    const std::vector<int> log_now = done();
    EXPECT_TRUE(explains(made, 0, log_now, 0)) << testing::PrintToString(log_now);
  }
  void forget() {
    count.write({0});
    copy.write(std::vector<unsigned char>(16));
    attempts.clear();
  }

  void hold() {
    is_held = true;
    hostrt::hold(stream);
  }

  cudaStream_t on() const { return per_thread ? cudaStreamPerThread : second ? *other : stream; }

  Stream stream;
  std::optional<Stream> other;
  DeviceBuffer<int> log{512}, count{1}, pointed{1};
  DeviceBuffer<unsigned> condition{1};
  DeviceBuffer<unsigned char> set{16}, copy{16};
  bool is_held = false;  // whether work has waited in the stream
  const bool patches_by_device;
  std::optional<Cache> cache;
  std::vector<Attempt> attempts;
  int calls = 0;
  bool per_thread = false, second = false;  // which stream runs are on
  std::function<void()> in_fn;
  absl::Status fn_status;

 private:
  std::vector<int> done() {
    std::vector<int> all = log.read();
    all.resize(static_cast<std::size_t>(count.first()));
    return all;
  }
  static bool explains(const std::vector<const Attempt*>& made, std::size_t i, const std::vector<int>& log,
                       std::size_t at) {
    if (i == made.size()) return at == log.size();
    const std::vector<int> all = appended({*made[i]->work, made[i]->value});
    std::size_t same = 0;
    while (same < all.size() && at + same < log.size() && log[at + same] == all[same]) ++same;
    const bool ok = made[i]->status.ok();
    for (std::size_t length = ok ? all.size() : 0; length <= same; ++length) {
      if (explains(made, i + 1, log, at + length)) return true;
      // A failed recorder does nothing more, but fn goes on, and so does a run inside it.
      const bool has_inner = made[i]->work->inner != Work::Inner::kNone;
      const bool inner_alone = !ok && has_inner && at + length < log.size() && log[at + length] == all.back();
      if (inner_alone && explains(made, i + 1, log, at + length + 1)) return true;
    }
    return false;
  }
};

inline const Key kKey = key("my label");
inline const Key kOther = key("other");

// Siblings with two different grids.
inline const Work kSmall{kKey, {{-1, 1}, {-2, 2}}}, kLarge{kOther, {{-1, 2}, {-2, 3}}};
// Siblings that differ in one argument.
inline const Work kFirst{kKey, {{-1, 1}, {-2, 1}, {-4, 1}, {-5, 2}, {-6, 1}}};
inline const Work kSecond{kOther, {{-1, 1}, {-3, 1}, {-4, 1}, {-5, 2}, {-6, 1}}};

// An operation and the state before it.
struct Scenario {
  const char* name;
  ForcedOptions options;
  Work mine, other;
  std::vector<const Work*> prepared;  // the runs before it; run i has value 3 + i % 4
  std::optional<Outcome> outcome;     // outcome of its last run without failures; none if that run fails
  int value = 7;                      // value of the last run
  bool may_destroy = true;            // whether it may destroy something

  int devices = 1;  // the cache is for the last device, and the first one is current
  std::function<void(World&)> before = nullptr;
  std::function<void(World&, const Scenario&)> operate = nullptr;  // by default runs `mine`
  std::function<void(World&)> after = nullptr;
  const char* of_fn = "";      // a CUDA function that fn itself calls
  bool forgets_other = false;  // whether the operation should forget the other key
  bool ends = false;           // whether it ends the cache; `after` then makes another

  std::vector<World::Run> runs_before() const {
    std::vector<World::Run> runs;
    for (const Work* work : prepared) runs.push_back({*work, 3 + static_cast<int>(runs.size()) % 4});
    return runs;
  }
  bool has_other() const { return std::find(prepared.begin(), prepared.end(), &other) != prepared.end(); }

  // The world just before the operation.
  std::unique_ptr<World> make_world() const;
  void operate_on(World& world) const {
    if (operate) return operate(world, *this);
    world.attempt(mine, value);
  }
};

std::vector<std::unique_ptr<Scenario>> scenarios();

// A failure during an operation.
class Fault {
 public:
  virtual ~Fault() = default;
  virtual void arm() = 0;
  // Returns whether it has struck since arm().
  virtual bool disarm() = 0;
  // Whether an operation's status reports it.
  virtual testing::AssertionResult reports(const absl::Status& status, const Scenario& scenario) const = 0;
  // Whether it is the failure of a CUDA function whose name contains this.
  virtual bool is_of(const char* /*name*/) const { return false; }
  // Whether it always leaves an object alive.
  bool leaks() const { return is_of("Destroy") || is_of("cudaFree"); }
};

// One call of a CUDA function, or all calls from the n-th on, fail.
class FailedCall : public Fault {
 public:
  // With `reported_in_part` the report may be incomplete: beside another failure there may be no memory for the key's
  // label, and an error in the last-error slot may hide the call.
  FailedCall(std::string function, int nth, cudaError_t error, int times, bool reported_in_part = false)
      : function_(std::move(function)), nth_(nth), error_(error), times_(times), reported_in_part_(reported_in_part) {}
  void arm() override;
  bool disarm() override;
  testing::AssertionResult reports(const absl::Status& status, const Scenario& scenario) const override;
  bool is_of(const char* name) const override { return function_.find(name) != std::string::npos; }

 private:
  const std::string function_;
  const int nth_;
  const cudaError_t error_;
  const int times_;
  const bool reported_in_part_;
  std::uint64_t before_ = 0;
};

// Two failures in one operation.
class TwoFaults : public Fault {
 public:
  TwoFaults(Fault& first, Fault& second) : first_(first), second_(second) {}
  void arm() override {
    first_.arm();
    second_.arm();
  }
  bool disarm() override {
    const bool first_struck = first_.disarm();
    second_struck_ = second_.disarm();
    return first_struck || second_struck_;
  }
  bool second_struck() const { return second_struck_; }
  testing::AssertionResult reports(const absl::Status& status, const Scenario& scenario) const override {
    const testing::AssertionResult first = first_.reports(status, scenario);
    return first ? first : second_.reports(status, scenario);
  }
  bool is_of(const char* name) const override { return first_.is_of(name) || second_.is_of(name); }

 private:
  Fault& first_;
  Fault& second_;
  bool second_struck_ = false;
};

// The runtime calls of the scenario's operation without failures, except those of the last-error slot.
std::map<std::string, std::uint64_t> calls_of(const Scenario& scenario);
// There are many pairs of faults: one of this number is tried, and all of them in full size.
int pairs_to_one();

// The call that the library makes in place of this one with toolkits from 13.2 on. hostrt counts it as this one
// (lib/cuda/compat.h).
std::string name_of_getter(const std::string& function);

// Whether the status is "call: cudaErrorX ..." of the function, with the key's label and the error.
testing::AssertionResult typed(const absl::Status& status, const std::string& function, cudaError_t error);
// Expects that stream, thread and runtime are unchanged, and that the ledger agrees with the cache (law 4).
void expect_usable(World& world, const Fault* fault = nullptr);
// Runs the scenario with the fault and expects laws 1 to 4, correct later runs, and nothing left alive. Returns whether
// the fault struck.
bool fail_and_recover(const Scenario& scenario, Fault& fault);

class FaultsTest : public testing::Test {
 protected:
  FaultsTest() { hostrt::reset(); }
  ~FaultsTest() override { hostrt::reset(); }
};

}  // namespace graphcache::test
