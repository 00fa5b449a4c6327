// Options::listeners: when each function is called, and the effect of errors.
#include "graphcache/listener.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"
#include "listeners.h"
#include "runs/threads_support.h"

namespace graphcache::test {
namespace {

using Calls = std::vector<std::string>;

class ListenerTest : public CacheTest {
 protected:
  // Options with a listener that records captures, launches, and what keys lose.
  Options watched(Options options = unshared()) {
    listener->wanted.launches = true;
    listener->on_begin = [this](const CacheEvent& event) {
      if (event.kind == EventKind::kCapture) {
        note("capture", event.key);
        captured_on = event.stream;
        EXPECT_EQ(event.captured, nullptr);
        return before_capture;
      }
      if (event.kind == EventKind::kLaunch) {
        note("launch", event.key);
        launched_on = event.stream;
        return before_launch;
      }
      return absl::OkStatus();
    };
    listener->on_end = [this](const CacheEvent& event) {
      if (event.kind == EventKind::kCapture) {
        std::size_t nodes = 0;
        if (event.captured != nullptr) {
          CUDA_OK(cudaGraphGetNodes(event.captured, nullptr, &nodes));
        }
        EXPECT_EQ(event.graph != 0, event.captured != nullptr);
        note("captured " + std::to_string(nodes), event.key);
      }
      if (event.kind == EventKind::kEvict) note("evicted", event.key);
      if (event.kind == EventKind::kDestroyExecutable) note("executable destroyed", event.key);
      if (event.kind == EventKind::kDestroyGraph) note("graph destroyed", event.key);
      if (event.kind == EventKind::kErase) note("erased", event.key);
    };
    listener->on_message = [this](std::string_view text) { log += std::string(text) + "\n"; };
    options.listeners = {listener};
    return options;
  }
  void note(const std::string& what, const Key& key) { noted.push_back(what + " " + std::string(key.label())); }
  void expect_noted(const Calls& wanted) {
    EXPECT_EQ(noted, wanted);
    noted.clear();
  }

  // Runs the key "k", whose fn returns a graph that adds one.
  absl::StatusOr<Outcome> run_own_graph(Cache& cache) {
    return cache.run(key("k"), stream, [&] {
      ++calls;
      return Graph{.graph = capture_graph(stream, [&](cudaStream_t on) { CUDA_OK(add_one(on)); }), .give_away = true};
    });
  }

  const std::shared_ptr<Functions> listener = std::make_shared<Functions>();
  Calls noted;
  std::string log;
  cudaStream_t captured_on = nullptr, launched_on = nullptr;
  absl::Status before_capture, before_launch;
};

TEST_F(ListenerTest, AMissHasAllAroundItAndAHitItsLaunch) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_noted({"capture k", "captured 1 k", "launch k"});
  EXPECT_EQ(captured_on, stream);
  EXPECT_EQ(launched_on, stream);
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_noted({"launch k", "launch k"});
  auto step = cache.prepare(key("s"), [&](cudaStream_t on) { return add_one(on); });
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  expect_noted({"capture s", "captured 1 s", "launch s", "launch s", "launch s"});
  expect_sum(6);
}

TEST_F(ListenerTest, OnTheLegacyStreamTheCaptureIsOnAnother) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, cache.run(key("k"), cudaStreamLegacy, [&](cudaStream_t on) {
    EXPECT_EQ(on, captured_on);
    return add_one(on);
  }));
  EXPECT_NE(captured_on, cudaStreamLegacy);
  EXPECT_EQ(launched_on, cudaStreamLegacy);
  CUDA_OK(cudaDeviceSynchronize());
  expect_sum(1);
}

TEST_F(ListenerTest, WarmHasNoLaunchAndADirectRunHasNothing) {
  Cache cache(watched(unshared({.capture_after = 1}))), warmed(watched());
  EXPECT_TRUE(warmed.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  expect_noted({"capture k", "captured 1 k"});
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_noted({});
  expect_sum(1);
}

TEST_F(ListenerTest, EvictedExecutablesAndForgottenTemplatesAreReported) {
  Cache cache(watched(unshared({.max_executables = 1, .max_templates = 1})));
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  noted.clear();
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  settle(cache);
  std::sort(noted.begin() + 4, noted.end());  // What is in flight is destroyed later.
  expect_noted({"capture b", "captured 1 b", "evicted a", "launch b", "executable destroyed a", "graph destroyed a"});
  EXPECT_TRUE(cache.erase(key("b")));
  settle(cache);
  expect_noted({"erased b", "executable destroyed b", "graph destroyed b"});
  EXPECT_RUN(kInstantiated, run_add(cache, key("c")));
  noted.clear();
  cache.clear();
  std::sort(noted.begin(), noted.end());
  expect_noted({"erased a", "erased c", "executable destroyed c", "graph destroyed c"});
  cache.clear();
  expect_noted({});
  {
    Cache ends(watched());
    EXPECT_RUN(kInstantiated, run_add(ends, key("k")));
    noted.clear();
  }
  expect_noted({"erased k", "executable destroyed k", "graph destroyed k"});
}

TEST_F(ListenerTest, ACaptureThatFailsOrIsEmptyIsClosed) {
  Cache cache(watched());
  EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
  expect_noted({"capture empty", "captured 0 empty"});
  EXPECT_FAILURE(kAborted, cache.run(key("k"), stream, [](cudaStream_t) { return absl::AbortedError("no"); }));
  expect_noted({"capture k", "captured 0 k"});
  EXPECT_THROW(cache.run(key("k"), stream, [](cudaStream_t) { throw std::runtime_error("no"); }).IgnoreError(),
               std::runtime_error);
  expect_noted({"capture k", "captured 0 k"});
  // A capture that breaks is closed before `fn` is called directly.
  Calls at_call;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    at_call = noted;
    cudaStreamSynchronize(on);
    cudaGetLastError();
    return add_one(on);
  }));
  EXPECT_EQ(at_call, (Calls{"capture k", "captured 0 k"}));
  expect_sum(1);
}

// If an error of captures were one of `fn`, it would cause a direct call.
TEST_F(ListenerTest, AnErrorBeforeACaptureIsTheRunsAlsoIfItIsAnErrorOfCaptures) {
  Cache inner;
  const Stream other;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  const absl::Status of_captures =
      inner.run(key("inner"), other, [&](cudaStream_t on) { return add_one(on); }).status();
  EXPECT_EQ(end_capture(other), 0u);
  EXPECT_EQ(cuda_error(of_captures), cudaErrorStreamCaptureUnsupported) << of_captures;
  for (const absl::Status& error : {absl::Status(absl::UnavailableError("no pool")), of_captures}) {
    SCOPED_TRACE(error);
    Cache cache(watched());
    noted.clear();
    reset_sum();
    calls = 0;
    before_capture = error;
    const absl::Status failed = run_add(cache, key("k")).status();
    EXPECT_EQ(failed.code(), error.code()) << failed;
    EXPECT_EQ(cuda_error(failed), cuda_error(error)) << failed;
    EXPECT_TRUE(mentions_all(failed, {std::string(error.message()).c_str(), "(\"k\")"}));
    EXPECT_EQ(calls, 0);
    expect_noted({"capture k"});
    const absl::Status not_warmed = cache.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); });
    EXPECT_EQ(not_warmed.code(), error.code()) << not_warmed;
    before_capture = absl::OkStatus();
    EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
    expect_sum(1);
  }
}

TEST_F(ListenerTest, AnErrorBeforeALaunchIsTheRuns) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
  before_launch = absl::AbortedError("no\noffset");
  for (int i = 0; i < 3; ++i) {
    EXPECT_FAILURE(kAborted, run_add(cache, stream, 10));
  }
  EXPECT_TRUE(says(log, "no offset"));
  expect_sum(1);
  EXPECT_EQ(cache.stats().failed, 3u);
  before_launch = absl::OkStatus();
  EXPECT_TRUE(run_add(cache, stream, 10).ok());
  EXPECT_RUN(kPatched, run_add(cache, stream, 100));
  expect_sum(111);
}

TEST_F(ListenerTest, AnExceptionBeforeSomethingRefusesItAndOthersAreLogged) {
  Options options = watched(unshared(1));
  bool throws = true;
  listener->on_begin = [&](const CacheEvent&) {
    if (throws) throw std::runtime_error("of the listener");
    return absl::OkStatus();
  };
  listener->on_end = [](const CacheEvent& event) {
    throw std::runtime_error(std::string(to_string(event.kind)) + "\nends");
  };
  Cache cache(options);
  EXPECT_ERROR(kUnknown, run_add(cache, key("a")), "a listener threw: of the listener");
  EXPECT_EQ(calls, 0);
  throws = false;
  EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
  throws = true;
  EXPECT_ERROR(kUnknown, run_add(cache, key("a")), "of the listener");
  throws = false;
  EXPECT_RUN(kInstantiated, run_add(cache, key("b")));
  EXPECT_TRUE(cache.erase(key("b")));
  settle(cache);
  expect_sum(2);
  for (const char* name :
       {"run", "capture", "instantiate", "upload", "launch", "evict", "destroy_executable", "destroy_graph", "erase"}) {
    EXPECT_TRUE(says(log, std::string("a listener threw: ") + name + " ends"));
  }
}

// The call of an fn that returns a graph stands where a capture would.
TEST_F(ListenerTest, AnFnThatReturnsAGraphHasTheCallsOfACapture) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_own_graph(cache));
  expect_noted({"capture k", "captured 1 k", "launch k"});
  EXPECT_EQ(captured_on, nullptr);
  EXPECT_EQ(launched_on, stream);
  EXPECT_RUN(kReplayed, run_own_graph(cache));
  expect_noted({"launch k"});
  expect_sum(2);
  EXPECT_TRUE(cache.erase(key("k")));
  settle(cache);
  expect_noted({"erased k", "executable destroyed k", "graph destroyed k"});
  before_capture = absl::AbortedError("no handle");
  EXPECT_FAILURE(kAborted, run_own_graph(cache));
  expect_noted({"capture k"});  // What a listener refuses to begin has no end.
  EXPECT_EQ(calls, 1);
  expect_sum(2);
}

TEST_F(ListenerTest, ADirectRunOfAnOwnGraphHasALaunch) {
  Cache cache(watched(unshared(0)));
  EXPECT_RUN(kEager, run_own_graph(cache));
  EXPECT_EQ(noted[0], "launch k");
  EXPECT_EQ(launched_on, stream);
  before_launch = absl::AbortedError("no offset");
  EXPECT_FAILURE(kAborted, run_own_graph(cache));
  EXPECT_EQ(calls, 2);
  expect_sum(1);
}

TEST_F(ListenerTest, AnInlinedRunCallsNoneAndNothingIsDestroyedInsideACapture) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, key("gone")));
  noted.clear();
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_TRUE(cache.erase(key("gone")));
    EXPECT_RUN(kInlined, cache.run(key("inner"), on, [&](cudaStream_t inner) { return add_one(inner); }));
  }));
  settle(cache);
  expect_noted({"capture outer", "erased gone", "captured 1 outer", "launch outer", "executable destroyed gone",
                "graph destroyed gone"});
  expect_sum(2);
}

// Every opened capture is closed without a graph, or has a graph that is forgotten once. So it is with threads, whose
// evictions are all reported.
TEST_F(ListenerTest, WhatWasOpenedIsClosedOrForgotten) {
  for (const Sharing sharing : {Sharing::kUpdates, Sharing::kNever}) {
    std::mutex mutex;
    std::map<std::string, int> open;
    int most_open = 0, kept = 0, evicted = 0;
    const auto add = [&](const Key& of, int by) {
      const std::lock_guard lock(mutex);
      int& count = open[of.to_string()];
      count += by;
      most_open = std::max(most_open, count);
    };
    std::map<std::uint64_t, int> graphs;
    listener->on_begin = [&](const CacheEvent& event) {
      if (event.kind == EventKind::kCapture) add(event.key, 1);
      return absl::OkStatus();
    };
    listener->on_end = [&](const CacheEvent& event) {
      const bool keeps = event.kind == EventKind::kCapture && event.graph != 0;
      if ((event.kind == EventKind::kCapture && !keeps) || event.kind == EventKind::kDestroyGraph) add(event.key, -1);
      const std::lock_guard lock(mutex);
      if (keeps) ++kept, ++graphs[event.graph];
      if (event.kind == EventKind::kDestroyGraph) --graphs.at(event.graph);
      if (event.kind == EventKind::kEvict) ++evicted;
    };
    const Options options = {.max_executables = 2,
                             .max_templates = 3,
                             .listeners = {listener},
                             .verify_every = 2,
                             .on_stale = OnStale::kForget};
    constexpr int kThreads = 4, kRuns = 150, kKeys = 6;
    std::vector<Lane> lanes(kThreads);
    {
      Cache cache(forced(sharing, options));
      in_threads(kThreads, [&](int i) {
        const Lane& lane = lanes[static_cast<std::size_t>(i)];
        for (int run = 0; run < kRuns; ++run) {
          // Two places of the program, values that become stale, and captures that break, fail or are empty.
          const Key of = key("k", (run + i) % kKeys);
          const auto fn = [&](cudaStream_t on) -> absl::Status {
            if (run % 29 == 28) return absl::AbortedError("no");
            if (run % 31 == 30) cudaStreamSynchronize(on);
            cudaGetLastError();
            if (run % 37 != 36) (void)launch(test::add, kGrid, kBlock, on, lane.sum.get(), kSize, 1.0f);
            return absl::OkStatus();
          };
          if (run % 2 == 0) {
            cache.run(of, lane.stream, fn).IgnoreError();
          } else {
            cache.run(of, lane.stream, [&](cudaStream_t on) { return fn(on); }).IgnoreError();
          }
          if (run % 41 == 40) cache.erase(of);
        }
        CUDA_OK(cudaStreamSynchronize(lane.stream));
      });
      stats = cache.stats();
      EXPECT_EQ(static_cast<std::uint64_t>(kept), stats.captures);
      EXPECT_GT(stats.forgotten, 10u);
      EXPECT_EQ(static_cast<std::uint64_t>(evicted), stats.evictions);
      EXPECT_TRUE(evicted > 0 || sharing == Sharing::kUpdates);
    }
    for (const auto& [of, count] : open) EXPECT_EQ(count, 0) << of;
    for (const auto& [graph, count] : graphs) EXPECT_EQ(count, 0) << graph;
    EXPECT_GE(most_open, 2);
  }
}

// The outer graph could not contain the inner run. So both runs are direct, and only the inner one has a graph.
TEST_F(ListenerTest, ARunInsideAnotherStreamsCaptureHasItsOwn) {
  Cache cache(watched());
  const Stream other;
  EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_TRUE(cache.run(key("inner"), other, [&](cudaStream_t inner) { return add_one(inner); }).ok());
    CUDA_OK(cudaGetLastError());
    return launch(do_nothing, 1, 1, on);
  }));
  CUDA_OK(cudaStreamSynchronize(other));
  expect_noted({"capture outer", "captured 0 outer", "capture inner", "captured 1 inner", "launch inner"});
  expect_sum(1);
}

TEST_F(ListenerTest, MemoryThatRunsOutInAListenerIsAnErrorOfTheRun) {
  bool throws = true;
  listener->wanted.launches = true;
  listener->on_begin = [&](const CacheEvent&) {
    if (throws) throw std::bad_alloc();
    return absl::OkStatus();
  };
  Cache cache(unshared({.listeners = {listener}}));
  for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
    throws = true;
    EXPECT_FAILURE(kResourceExhausted, run_add(cache, key("k")));
    throws = false;
    EXPECT_TRUE(did(outcome, run_add(cache, key("k"))));
  }
  expect_sum(2);
}

// A generator whose offset each launch reads from memory: the listener advances it.
TEST_F(ListenerTest, AGeneratorsOffsetIsSetBeforeEachLaunch) {
  DeviceBuffer<float> offset(1);
  float next = 1;
  listener->wanted.launches = true;
  listener->on_begin = [&](const CacheEvent& event) {
    if (event.kind != EventKind::kLaunch) return absl::OkStatus();
    EXPECT_EQ(launch(fill, 1, 1, event.stream, offset.get(), 1, next), cudaSuccess);
    next *= 2;
    return absl::OkStatus();
  };
  Cache cache(renting({.max_executables = 2, .listeners = {listener}}));
  float sum = 0, value = 1;
  for (int i = 0; i < 12; ++i) {
    EXPECT_SUCCESS(cache.run(key("k", i % 4), stream, [&](cudaStream_t on) {
      return launch(axpy, 1, 1, on, data.get(), offset.get(), 1, 1.0f);
    }));
    sum += value;
    value *= 2;
  }
  EXPECT_EQ(data.first(), sum);
}

// "begin run", "end run instantiated" and so on.
class Order : public Listener {
 public:
  explicit Order(Wants the_wants) : wanted(the_wants) {}
  Wants wants() const override { return wanted; }
  absl::Status begin(const CacheEvent& event) override {
    said.push_back(std::string("begin ") + to_string(event.kind));
    const bool is_refused_capture = said.back() == "begin capture" && count("begin capture") == refused_capture;
    return event.kind == refused || is_refused_capture ? absl::AbortedError("refused") : absl::OkStatus();
  }
  void end(const CacheEvent& event) override {
    std::string text = std::string("end ") + to_string(event.kind);
    if (event.outcome) text += std::string(" ") + to_string(*event.outcome);
    if (event.reason) text += std::string(" ") + to_string(*event.reason);
    if (!event.status.ok()) text += " failed";
    said.push_back(text);
    if (event.runs != nullptr) runs = *event.runs;
    losses.push_back(event.loss);
  }

  std::size_t count(const char* text) const { return std::count(said.begin(), said.end(), text); }

  const Wants wanted;
  std::optional<EventKind> refused;
  std::size_t refused_capture = 0;  // Its number, from 1 on.
  Calls said;
  std::vector<Loss> losses;
  std::array<std::uint64_t, kOutcomeCount> runs{};
};

TEST_F(ListenerTest, AMissContainsWhatItDoesAndHitsAreSilent) {
  const auto order = std::make_shared<Order>(Listener::Wants());
  Cache cache(unshared({.listeners = {order}}));
  EXPECT_RUN(kInstantiated, run_add(cache, stream, 1));
  EXPECT_EQ(order->said, (Calls{"begin run", "begin capture", "end capture", "begin instantiate", "end instantiate",
                                "begin upload", "end upload", "end run instantiated"}));
  order->said.clear();
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(run_add(cache, stream, static_cast<float>(1 + i % 2)).ok());
  EXPECT_EQ(order->said, Calls());
  EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
  EXPECT_EQ(order->said, (Calls{"begin run", "begin capture", "end capture", "end run eager nothing_captured"}));
  order->said.clear();
  EXPECT_FAILURE(kAborted, cache.run(key("fails"), stream, [](cudaStream_t) { return absl::AbortedError("no"); }));
  EXPECT_EQ(order->said, (Calls{"begin run", "begin capture", "end capture failed", "end run failed"}));
}

TEST_F(ListenerTest, WhatFnThrowsIsInTheEventsThatItPasses) {
  Calls ends;
  listener->wanted = {.hits = 1};
  listener->on_end = [&](const CacheEvent& event) {
    if (!event.status.ok()) ends.push_back(to_string(event.kind) + (": " + event.status.ToString()));
  };
  const auto expect_ends = [&](const Options& options, const auto& fn, const Calls& wanted) {
    ends.clear();
    Cache cache(options);
    EXPECT_THROW((void)cache.run(key("k"), stream, fn), int);
    EXPECT_EQ(ends, wanted);
  };
  const Calls both = {"capture: UNKNOWN: fn threw", "run: UNKNOWN: fn threw"}, one = {both[1]};
  const auto throws = [](cudaStream_t) { throw 1; };
  const auto makes_graph = []() -> absl::StatusOr<Graph> { throw 1; };
  expect_ends({.listeners = {listener}}, throws, both);
  expect_ends({.listeners = {listener}}, makes_graph, both);
  expect_ends({.capture_after = 1, .listeners = {listener}}, throws, one);
  expect_ends({.max_executables = 0, .listeners = {listener}}, throws, one);
  expect_ends({.max_executables = 0, .listeners = {listener}}, makes_graph, one);
  ends.clear();
  Cache cache({.listeners = {listener}});
  std::thread([&] { (void)cache.run(key("k"), stream, [](cudaStream_t) { pthread_exit(nullptr); }); }).join();
  EXPECT_EQ(ends, (Calls{"capture: CANCELLED: ", "run: CANCELLED: "}));
}

TEST_F(ListenerTest, AllHaveTheHitsThatOneWants) {
  const auto all = std::make_shared<Order>(Listener::Wants{.hits = 1});
  const auto some = std::make_shared<Order>(Listener::Wants{.hits = 7});
  const auto none = std::make_shared<Order>(Listener::Wants());
  const auto expect_hits = [&](const std::vector<std::shared_ptr<Order>>& listeners, int count) {
    Cache cache({.listeners = {listeners.begin(), listeners.end()}});
    auto step = cache.prepare(key("s"), [&](cudaStream_t on) { return add_one(on); });
    EXPECT_RUN(kInstantiated, step.run(stream));
    EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
    for (const auto& each : listeners) {
      EXPECT_EQ(each->count("end run instantiated"), 2u);
      each->said.clear();
    }
    for (int i = 0; i < 64; ++i) EXPECT_RUN(kReplayed, i % 2 == 0 ? step.run(stream) : run_add(cache, key("k")));
    for (const auto& each : listeners) {
      EXPECT_NEAR(each->count("begin run"), count, count == 64 ? 0 : count / 4);
      EXPECT_EQ(each->count("end run replayed"), each->count("begin run"));
      EXPECT_EQ(each->said.size(), 2u * each->count("begin run"));
    }
  };
  expect_hits({all, some, none}, 64);
  expect_hits({none, some}, 8);
  expect_hits({none}, 0);
  expect_sum(3 * 66);
}

TEST_F(ListenerTest, EachOfSeveralCachesHasItsPartOfTheHits) {
  std::array<std::shared_ptr<Order>, 3> orders;
  for (auto& order : orders) order = std::make_shared<Order>(Listener::Wants{.hits = 2});
  Cache first({.listeners = {orders[0]}}), second({.listeners = {orders[1]}});
  Cache disabled({.max_executables = 0, .listeners = {orders[2]}});
  for (int i = 0; i < 100; ++i) {
    for (Cache* const cache : {&first, &second, &disabled}) EXPECT_SUCCESS(run_add(*cache, key("k")));
  }
  for (const auto& order : orders) EXPECT_NEAR(order->count("begin run"), 50, 8);
}

// The first capture of a verified run, and the three that follow a difference.
TEST_F(ListenerTest, ARefusedCaptureOfVerifyModeFailsTheRun) {
  for (std::size_t refused = 2; refused < 7; ++refused) {
    const auto order = std::make_shared<Order>(Listener::Wants());
    order->refused_capture = refused;
    Cache cache({.listeners = {order}, .verify_every = 1});
    float value = 1;
    const auto fn = [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, value++); };
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
    EXPECT_EQ(cache.run(key("k"), stream, fn).ok(), refused == 6) << refused;
    EXPECT_EQ(cache.stats().stale, refused == 6 ? 1u : 0u);
  }
}

// The refused value makes the run call `fn`, in the midst of a run that is reported already.
TEST_F(ListenerTest, ARunThatGoesOnDirectlyIsReportedOnce) {
  int begun = 0, ended = 0;
  listener->on_begin = [&](const CacheEvent& event) {
    begun += event.kind == EventKind::kRun;
    return absl::OkStatus();
  };
  listener->on_end = [&](const CacheEvent& event) { ended += event.kind == EventKind::kRun; };
  Cache cache({.listeners = {listener}});
  const auto run = [&](cudaStream_t on, unsigned threads) {
    return cache.run(key("k"), on, params(dim3(threads)), [&](Recorder& rec, Slot<dim3> block) {
      rec.launch(add, {kGrid, block}, data.get(), kSize, 1.0f);
    });
  };
  EXPECT_RUN(kInstantiated, run(stream, kBlock.x));
  EXPECT_EQ(begun, 1);
  Stream other;
  EXPECT_FALSE(run(other, 2000).ok());
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 2);
  cudaGetLastError();
  expect_sum(1);
}

TEST_F(ListenerTest, WhoAgreedHasAnEndIfAnotherOneRefuses) {
  const auto first = std::make_shared<Order>(Listener::Wants{.launches = true});
  const auto second = std::make_shared<Order>(Listener::Wants{.launches = true});
  Cache cache({.listeners = {first, second}});
  for (const EventKind kind : {EventKind::kCapture, EventKind::kLaunch}) {
    second->refused = kind;
    first->said.clear();
    second->said.clear();
    EXPECT_FAILURE(kAborted, run_add(cache, key("k")));
    const std::string name = to_string(kind);
    EXPECT_EQ(std::count(first->said.begin(), first->said.end(), "end " + name + " failed"), 1) << name;
    EXPECT_EQ(std::count(second->said.begin(), second->said.end(), "begin " + name), 1) << name;
    EXPECT_EQ(std::count(second->said.begin(), second->said.end(), "end " + name + " failed"), 0) << name;
  }
  expect_sum(0);
  second->refused = EventKind::kInstantiate;  // cannot be refused
  EXPECT_RUN(kInstantiated, run_add(cache, key("another")));
}

TEST_F(ListenerTest, WhatAKeyLosesHasAReason) {
  const auto order = std::make_shared<Order>(Listener::Wants());
  Cache cache(renting({.max_executables = 1, .listeners = {order}}));
  const auto run = [&](const char* name, float value) {
    return cache.run(key(name), stream, [&, value](cudaStream_t on) { return add_value(on, value); });
  };
  EXPECT_RUN(kInstantiated, run("a", 1));
  order->said.clear();
  order->losses.clear();
  EXPECT_RUN(kUpdated, run("b", 2));
  EXPECT_EQ(order->said, (Calls{"begin run", "begin capture", "end capture", "end lend", "begin update", "end update",
                                "end run updated"}));
  EXPECT_EQ(order->losses[1], Loss::kLent);
  order->losses.clear();
  EXPECT_RUN(kSwitched, run("a", 1));
  EXPECT_EQ(order->losses, (std::vector<Loss>{Loss::kLent, Loss::kLent, Loss::kNone}));  // lend, update, run
  order->said.clear();
  EXPECT_TRUE(cache.erase(key("a")));
  settle(cache);
  EXPECT_EQ(order->said, (Calls{"end erase", "begin destroy_executable", "end destroy_executable",
                                "begin destroy_graph", "end destroy_graph"}));
  EXPECT_EQ(order->runs[static_cast<int>(Outcome::kInstantiated)], 1u);
  EXPECT_EQ(order->runs[static_cast<int>(Outcome::kSwitched)], 1u);
  expect_sum(4);
}

// A listener may read the cache during each event.
TEST_F(ListenerTest, TheCacheMayBeReadInEachCall) {
  Cache* read = nullptr;
  int calls_read = 0;
  const auto look = [&] {
    if (read == nullptr) return;
    ++calls_read;
    EXPECT_LE(read->stats().live_executables, 1u);
    EXPECT_LE(read->entries().size(), 3u);
    (void)read->contains(key("a"));
  };
  listener->wanted = {.hits = 1, .launches = true};
  listener->on_begin = [&](const CacheEvent&) {
    look();
    return absl::OkStatus();
  };
  listener->on_end = [&](const CacheEvent&) { look(); };
  Cache cache(unshared({.max_executables = 1, .max_templates = 1, .listeners = {listener}}));
  read = &cache;
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(run_add(cache, key(i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c")).ok());
  EXPECT_TRUE(cache.erase(key("a")));
  cache.clear();
  read = nullptr;
  EXPECT_GT(calls_read, 100);
}

TEST_F(ListenerTest, TheGraphOfAHitMayBeReadAtItsEnd) {
  listener->wanted.hits = 1;
  Cache cache({.listeners = {listener}});
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  int read = 0;
  listener->on_end = [&](const CacheEvent& event) {
    if (event.kind == EventKind::kRun) read += cache.graph(key("k")).ok() ? 1 : 0;
  };
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(read, 3);
}

TEST_F(ListenerTest, ANullPointerIsAnInvalidOption) {
  Cache cache({.listeners = {listener, nullptr}});
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
}

// A cache that ends inside a capture leaves its executables to the next run of another one, and its listeners with
// them.
TEST_F(ListenerTest, WhatAnEndedCacheLeavesIsReportedWhenItIsDestroyed) {
  Cache outer;
  EXPECT_RUN(kInstantiated, outer.run(key("outer"), stream, [&](cudaStream_t on) {
    const Stream other;
    {
      Cache inner(watched());
      EXPECT_TRUE(absl::IsFailedPrecondition(inner.warm(key("k"), other, [&](cudaStream_t) {})));
      noted.clear();
    }
    return add_one(on);
  }));
  auto ending = std::make_unique<Cache>(watched());
  EXPECT_RUN(kInstantiated, run_add(*ending, key("k")));
  noted.clear();
  EXPECT_RUN(kInstantiated, outer.run(key("ends another"), stream, [&](cudaStream_t on) {
    ending.reset();
    expect_noted({"erased k"});
    return add_one(on);
  }));
  outer.clear();
  expect_noted({"executable destroyed k", "graph destroyed k"});
  expect_sum(3);
}

using ListenerTestOnHostrt = ListenerTest;

// Nothing is destroyed then, but programs may release what they hold for the keys.
TEST_F(ListenerTestOnHostrt, AFatalErrorIsReportedAsTheEndOfAll) {
  Cache cache(watched());
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  noted.clear();
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress, -1);
  EXPECT_FALSE(run_add(cache, key("k")).ok());
  hostrt::clear_failures();
  expect_noted({"launch k", "erased k", "executable destroyed k", "graph destroyed k"});
  EXPECT_TRUE(says(log, "cudaErrorIllegalAddress"));
  for (int i = 2; i <= 8; ++i) EXPECT_FALSE(run_add(cache, key("k")).ok());
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 4) << log;  // The first, second, fourth and eighth failure.
}

TEST_F(ListenerTestOnHostrt, AnUpdateThatIsRefusedHasTheError) {
  absl::Status updated;
  listener->on_end = [&](const CacheEvent& event) {
    if (event.kind == EventKind::kUpdate) updated = event.status;
  };
  Cache cache(renting({.max_executables = 1, .listeners = {listener}}));
  const auto run = [&](int byte) {
    return cache.run(key("k", byte), stream,
                     [&](cudaStream_t on) { return cudaMemsetAsync(data.get(), byte, data.bytes(), on); });
  };
  EXPECT_RUN(kInstantiated, run(1));
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_TRUE(says(std::string(updated.message()), "cudaGraphExecUpdate: cudaErrorGraphExecUpdateFailure"));
}

}  // namespace
}  // namespace graphcache::test
