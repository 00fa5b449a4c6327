// Background threads make executables while runs call `fn` directly. On either runtime.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"
#ifndef GRAPHCACHE_TEST_CUDA

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "graphcache/hostrt.h"
#endif

namespace graphcache::test {
namespace {

using Reports = std::vector<std::pair<std::size_t, std::size_t>>;

class BackgroundTest : public CacheTest {
 protected:
  static Options with_threads(Options options, int threads = 1) {
    options.background_threads = threads;
    return options;
  }
  auto chain(int nodes) {
    return [this, nodes](Recorder& rec, Slot<float> value) {
      ++calls;
      for (int i = 0; i < nodes; ++i) rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
      if (in_direct_call && !is_capturing(rec.stream())) std::exchange(in_direct_call, nullptr)();
    };
  }
  // Adds the value to every element, `nodes` times. Keys that differ only in the number are siblings.
  absl::StatusOr<Outcome> run_chain(Cache& cache, int number, int nodes, float value) {
    return cache.run(key("chain", number), stream, params(value), chain(nodes));
  }

  std::function<void()> in_direct_call;  // called once
};

TEST_F(BackgroundTest, AFirstRunIsDirectAndLaterOnesReplay) {
  Cache cache(with_threads({}));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(calls, 2);  // captured, and called directly
  expect_sum(1);
  EXPECT_TRUE(cache.wait_until_ready().ok());
  for (int i = 2; i <= 4; ++i) {
    EXPECT_RUN(kReplayed, run_add(cache, key("k")));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(calls, 2);
  stats = cache.stats();
  EXPECT_EQ(stats.eager(EagerReason::kPreparing), 1u);
  EXPECT_EQ(stats.captures, 1u);
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(cache.entries().at(0).eager_reason, EagerReason::kPreparing);
}

TEST_F(BackgroundTest, AReadyKeyFollowsTheValuesOfItsRuns) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    data.write(std::vector<float>(kSize, 0));
    Options options = with_threads({});
    force(patching);
    Cache cache(options);
    EXPECT_RUN(kEager, run_add(cache, stream, 1.0f));
    EXPECT_TRUE(cache.wait_until_ready().ok());
    EXPECT_RUN(kPatched, run_add(cache, stream, 10.0f));
    EXPECT_RUN(kPatched, run_add(cache, stream, 100.0f));
    EXPECT_RUN(kReplayed, run_add(cache, stream, 100.0f));
    expect_sum(211);
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
}

// While one thread calls `fn` directly and the key's preparation has not begun, other threads run that key.
TEST_F(BackgroundTest, RunsOfAKeyThatIsNotReadyDoNotWait) {
  Cache cache(with_threads({}));
  std::optional<absl::StatusOr<Outcome>> of_run;
  absl::Status of_warm = absl::UnknownError("not called");
  in_direct_call = [&] {
    std::thread([&] {
      of_run = run_chain(cache, 1, 3, 10);
      of_warm = cache.warm(key("chain", 1), stream, params(1.0f), chain(3));
    }).join();
  };
  EXPECT_RUN(kEager, run_chain(cache, 1, 3, 1));
  ASSERT_TRUE(of_run.has_value());
  EXPECT_RUN(kEager, *of_run);
  EXPECT_TRUE(of_warm.ok()) << of_warm.ToString();
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_RUN(kReplayed, run_chain(cache, 1, 3, 1));
  expect_sum(3 * (1 + 10 + 1));
  EXPECT_EQ(cache.stats().captures, 1u);
  EXPECT_EQ(cache.stats().eager(EagerReason::kPreparing), 2u);
}

TEST_F(BackgroundTest, NoRunInstantiates) {
  Cache cache(with_threads(unshared(1)));
  const auto run = [&](int number, Outcome wanted) {
    EXPECT_TRUE(did(wanted, run_chain(cache, number, 3, 1)));
    EXPECT_TRUE(cache.wait_until_ready().ok());
  };
  run(1, Outcome::kEager);
  run(2, Outcome::kEager);  // takes the place
  run(1, Outcome::kEager);  // its template exists
  run(1, Outcome::kReplayed);
  run(2, Outcome::kEager);
  run(2, Outcome::kReplayed);
  expect_sum(6 * 3);
  EXPECT_EQ(calls, 2 + 2 + 1 + 1);
  stats = cache.stats();
  EXPECT_EQ(stats.captures, 2u);
  EXPECT_EQ(stats.instantiations, 4u);
  EXPECT_EQ(stats.evictions, 3u);
  EXPECT_EQ(stats.live_executables, 1u);
}

TEST_F(BackgroundTest, ARunBringsOverASiblingsExecutable) {
  Cache cache(with_threads(renting(1)));
  const auto run = [&](int number, float value) {
    const auto outcome = run_chain(cache, number, 3, value);
    EXPECT_TRUE(cache.wait_until_ready().ok());
    return outcome;
  };
  EXPECT_RUN(kEager, run(1, 1));
  EXPECT_RUN(kUpdated, run(2, 10));
  EXPECT_RUN(kPatched, run(2, 20));
  EXPECT_RUN(kSwitched, run(1, 1));
  EXPECT_RUN(kSwitched, run(2, 10));
  EXPECT_EQ(cache.stats().instantiations, 1u);
  expect_sum(3 * (1 + 10 + 20 + 1 + 10));
}

// A table that was uploaded but never launched may be switched to another member's set.
TEST_F(BackgroundTest, MembersOfATableTakeTurns) {
  constexpr int kKeys = 16, kNodes = 8;
  Options options = with_threads({});
  force(&options, Sharing::kTable);
  Cache cache(options);
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    for (int number = 0; number < kKeys; ++number) {
      const auto value = static_cast<float>(1 + number);
      EXPECT_TRUE(cache
                      .run(key("member", number), stream, params(value),
                           [&](Recorder& rec, Slot<float> v) {
                             for (int i = 0; i < kNodes; ++i) {
                               rec.launch(add, {dim3(2 + number % 3), kBlock}, data.get(), kSize, v);
                             }
                           })
                      .ok());
      sum += kNodes * value;
      EXPECT_TRUE(cache.wait_until_ready().ok());
    }
  }
  expect_sum(sum);
  stats = cache.stats();
  EXPECT_EQ(stats.outcome(Outcome::kEager), 1u);
  EXPECT_EQ(stats.refused_device_updates, 0u);
  EXPECT_EQ(stats.live_executables, 1u);
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.captures, static_cast<std::uint64_t>(kKeys));
  EXPECT_EQ(stats.outcome(Outcome::kRestored) + stats.outcome(Outcome::kInstantiated), 0u);
  EXPECT_GE(stats.set_switches, 2u * kKeys);
}

TEST_F(BackgroundTest, WarmLeavesTheRestToTheThreads) {
  constexpr int kKeys = 20;
  Cache cache(with_threads({}));
  for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(cache.warm(key("chain", i), stream, params(1.0f), chain(3)).ok());
  EXPECT_TRUE(cache.warm(key("chain", 0), stream, params(1.0f), chain(3)).ok());
  EXPECT_EQ(calls, kKeys);
  Reports reports;
  EXPECT_TRUE(cache
                  .wait_until_ready(std::chrono::minutes(1),
                                    [&](std::size_t ready, std::size_t all) { reports.emplace_back(ready, all); })
                  .ok());
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back(), std::make_pair(std::size_t{kKeys}, std::size_t{kKeys}));
  for (std::size_t i = 1; i < reports.size(); ++i) EXPECT_GT(reports[i].first, reports[i - 1].first);
  for (int i = 0; i < kKeys; ++i) EXPECT_RUN(kReplayed, run_chain(cache, i, 3, 1));
  EXPECT_EQ(calls, kKeys);
  expect_sum(3 * kKeys);
  EXPECT_EQ(cache.stats().runs(), std::uint64_t{kKeys});
}

TEST_F(BackgroundTest, WarmEvictsNothing) {
  Cache cache(with_threads(unshared(2)));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cache.warm(key("chain", i), stream, params(1.0f), chain(3)).ok());
  EXPECT_TRUE(cache.wait_until_ready().ok());
  stats = cache.stats();
  EXPECT_EQ(stats.live_executables, 2u);
  EXPECT_EQ(stats.live_templates, 5u);
  EXPECT_EQ(stats.evictions, 0u);
}

TEST_F(BackgroundTest, WithoutThreadsNothingIsWaitedFor) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  bool reported = false;
  const auto report = [&](std::size_t, std::size_t) { reported = true; };
  EXPECT_TRUE(cache.wait_until_ready(std::chrono::nanoseconds::max(), report).ok());
  EXPECT_FALSE(reported);
}

TEST_F(BackgroundTest, InsideFnNothingCanBeWaitedFor) {
  Cache cache(with_threads({}));
  absl::Status inside;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
    if (is_capturing(on)) inside = cache.wait_until_ready();
    return add_one(on);
  }));
  EXPECT_FAILURE(kFailedPrecondition, inside);
  EXPECT_TRUE(cache.wait_until_ready().ok());
}

TEST_F(BackgroundTest, ANegativeNumberOfThreadsIsAnError) {
  Cache cache(with_threads({}, -1));
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
  EXPECT_EQ(calls, 0);
}

TEST_F(BackgroundTest, ErrorsAndExceptionsOfTheDirectCallAreTheRuns) {
  Cache cache(with_threads({}));
  bool throws = true;
  const auto fn = [&](cudaStream_t on) {
    const cudaError_t error = add_one(on);
    if (!is_capturing(on) && throws) throw std::runtime_error("direct");
    return error;
  };
  EXPECT_THROW((void)cache.run(key("k"), stream, fn), std::runtime_error);
  throws = false;
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  expect_sum(2);
  EXPECT_EQ(cache.stats().failed, 1u);
}

// A direct run would hand out other memory than the graph's.
TEST_F(BackgroundTest, AKeyThatHandsOutMemoryDoesWithout) {
  Cache cache(with_threads({}));
  float* memory = nullptr;
  for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(wanted, cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), kSize * sizeof(float), on));
      CUDA_OK(cudaMemsetAsync(memory, 0, kSize * sizeof(float), on));
      return launch(add, kGrid, kBlock, on, memory, kSize, 1.0f);
    })));
    std::vector<float> values(kSize);
    CUDA_OK(cudaMemcpyAsync(values.data(), memory, kSize * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(values, std::vector<float>(kSize, 1));
    CUDA_OK(cudaFreeAsync(memory, stream));
  }
}

TEST_F(BackgroundTest, ACacheEndsWithWorkLeft) {
  for (int round = 0; round < 20; ++round) {
    Cache cache(with_threads({}, 1 + round % 2));
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(run_chain(cache, i, 5, 1).ok());
  }
  expect_sum(20 * 30 * 5);
}

TEST_F(BackgroundTest, KeysMayBeForgottenWhileTheyArePrepared) {
  Cache cache(with_threads(unshared(4)));
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(run_chain(cache, i, 5, 1).ok());
    for (int i = 0; i < 8; i += 2) EXPECT_TRUE(cache.erase(key("chain", i)));
    if (round % 4 == 0) cache.clear();
    EXPECT_EQ(cache.contains(key("chain", 0)), false);
  }
  expect_sum(20 * 8 * 5);
  cache.clear();
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_TRUE(run_add(cache, key("one more")).ok());  // what was made meanwhile is destroyed with it
  EXPECT_TRUE(cache.entries().size() == 1);
}

TEST_F(BackgroundTest, ThreadsMeetKeysThatAreAddedAndErased) {
  constexpr int kThreads = 4, kRuns = 400, kKeys = 12;
  Cache cache(with_threads(renting(5), 2));
  std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
  for (int i = 0; i < kThreads; ++i) sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Stream own;
      for (int run = 0; run < kRuns; ++run) {
        const int number = (run * 7 + i * 3 + run / 50) % kKeys;
        float* const sum = sums[static_cast<std::size_t>(i)]->get();
        EXPECT_TRUE(cache
                        .run(key("shared", number), own, params(sum),
                             [&](Recorder& rec, Slot<float*> to) {
                               for (int n = 0; n < 2 + number % 3; ++n) {
                                 rec.launch(add, {kGrid, kBlock}, to, kSize, 1.0f);
                               }
                             })
                        .ok());
        if (run % 100 == 99) {
          EXPECT_TRUE(cache.wait_until_ready(std::chrono::seconds(20)).ok());
        }
      }
      CUDA_OK(cudaStreamSynchronize(own));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) {
    float sum = 0;
    for (int run = 0; run < kRuns; ++run) sum += static_cast<float>(2 + (run * 7 + i * 3 + run / 50) % kKeys % 3);
    EXPECT_EQ(sums[static_cast<std::size_t>(i)]->read(), std::vector<float>(kSize, sum));
  }
  stats = cache.stats();
  EXPECT_EQ(stats.runs(), std::uint64_t{kThreads} * kRuns);
  EXPECT_EQ(stats.outcome(Outcome::kInstantiated) + stats.outcome(Outcome::kRestored), 0u);
  EXPECT_LE(stats.live_executables, 5u);
}

#ifndef GRAPHCACHE_TEST_CUDA

// Holds the cache's background thread: a task fails, and the log callback waits.
class HeldThread {
 public:
  Options options(Options options) {
    options.background_threads = 1;
    options.log = [this](std::string_view) {
      std::unique_lock<std::mutex> lock(mutex_);
      is_held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    };
    return options;
  }
  // Makes its next task fail.
  static void fail(cudaError_t error) { hostrt::fail_call("cudaGraphInstantiate", 1, error); }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_held_; });
  }
  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false, released_ = false;
};

TEST_F(BackgroundTest, RunsGoOnDirectlyWhileAThreadIsBusy) {
  HeldThread held;
  Cache cache(held.options({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  held.wait();
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kEager, run_add(cache, key("fails")));
    EXPECT_RUN(kEager, run_add(cache, key("waits")));
  }
  stats = cache.stats();
  EXPECT_EQ(stats.eager(EagerReason::kPreparing), 7u);
  EXPECT_EQ(stats.captures, 1u);  // a run captures once a thread is free to continue
  EXPECT_TRUE(cache.warm(key("chain", 1), stream, params(1.0f), chain(3)).ok());
  Reports reports;
  const absl::Status late = cache.wait_until_ready(
      std::chrono::milliseconds(5), [&](std::size_t ready, std::size_t all) { reports.emplace_back(ready, all); });
  EXPECT_FAILURE(kDeadlineExceeded, late);
  EXPECT_TRUE(mentions(late, "2 of 2 keys are not ready")) << late.ToString();
  EXPECT_TRUE(reports.empty());
  held.release();
  const absl::Status failed = cache.wait_until_ready();
  EXPECT_EQ(cuda_error(failed), cudaErrorUnknown) << failed.ToString();
  EXPECT_TRUE(mentions(failed, "fails")) << failed.ToString();
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_RUN(kReplayed, run_chain(cache, 1, 3, 1));
  EXPECT_RUN(kEager, run_add(cache, key("waits")));
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_RUN(kReplayed, run_add(cache, key("waits")));
  expect_sum(7 + 3 + 2);
}

// The stream of the capture may be destroyed before the executable is made.
TEST_F(BackgroundTest, TheStreamOfTheCaptureIsNotUsed) {
  HeldThread held;
  Options options = held.options({});
  force(Patching::kDeviceUpdated);
  Cache cache(options);
  hostrt::fail_call("cudaGraphUpload", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  held.wait();
  for (int i = 0; i < 20; ++i) {
    const Stream one;
    EXPECT_TRUE(cache.warm(key("chain", i), one, params(1.0f), chain(3)).ok());
  }
  held.release();
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
  for (int i = 0; i < 20; ++i) EXPECT_RUN(kPatched, run_chain(cache, i, 3, 2));
  expect_sum(1 + 20 * 6);
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

TEST_F(BackgroundTest, AKeyThatFailedRunsDirectlyAndIsTriedAgain) {
  Cache cache(with_threads({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
  EXPECT_NE(cache.entries().at(0).error.find("cudaGraphInstantiate"), std::string::npos);
  EXPECT_FALSE(cache.entries().at(0).live);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(cache.stats().eager(EagerReason::kBackoff), 1u);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(4);
  EXPECT_EQ(cache.entries().at(0).error, "");
}

TEST_F(BackgroundTest, AFailedUploadDropsTheExecutable) {
  Cache cache(with_threads({}));
  hostrt::fail_call("cudaGraphUpload", 1, cudaErrorUnknown);
  EXPECT_TRUE(cache.warm(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
  EXPECT_EQ(cache.stats().live_executables, 0u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
}

TEST_F(BackgroundTest, OutOfMemoryOneExecutableIsEvicted) {
  Cache cache(with_threads(unshared()));
  EXPECT_RUN(kEager, run_add(cache, key("old")));
  EXPECT_TRUE(cache.wait_until_ready().ok());
  HeldThread::fail(cudaErrorMemoryAllocation);
  EXPECT_RUN(kEager, run_add(cache, key("new")));
  EXPECT_TRUE(cache.wait_until_ready().ok());
  EXPECT_EQ(live(cache), std::vector<std::string>{"new"});
  EXPECT_RUN(kReplayed, run_add(cache, key("new")));
}

TEST_F(BackgroundTest, AFatalErrorEndsTheCache) {
  Cache cache(with_threads({}));
  HeldThread::fail(cudaErrorIllegalAddress);
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(cuda_error(cache.wait_until_ready()), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.status()), cudaErrorIllegalAddress);
  const auto later = run_add(cache, key("k"));
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(cuda_error(later.status()), cudaErrorIllegalAddress);
}

TEST_F(BackgroundTest, ExecutablesOfKeysForgottenInTimeAreNotMade) {
  HeldThread held;
  Cache cache(held.options({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  held.wait();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cache.warm(key("chain", i), stream, params(1.0f), chain(3)).ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(cache.erase(key("chain", i)));
  held.release();
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
  EXPECT_EQ(cache.stats().instantiations, 1u);
  EXPECT_EQ(cache.entries().size(), 2u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
}

TEST_F(BackgroundTest, ACacheThatEndsLeavesNothing) {
  const hostrt::Ledger before = hostrt::ledger();
  {
    HeldThread held;
    auto cache = std::make_unique<Cache>(held.options({}));
    HeldThread::fail(cudaErrorUnknown);
    EXPECT_RUN(kEager, run_add(*cache, key("fails")));
    held.wait();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(cache->warm(key("chain", i), stream, params(1.0f), chain(3)).ok());
    std::thread releases([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      held.release();
    });
    const auto instantiated = hostrt::calls("cudaGraphInstantiate");
    cache.reset();
    releases.join();
    EXPECT_EQ(hostrt::calls("cudaGraphInstantiate"), instantiated);
  }
  EXPECT_EQ(hostrt::ledger(), before);
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

// A direct run hands out other memory than the graph's. So a graph that is ready later must not be replayed as if the
// caller had the graph's memory.
TEST_F(BackgroundTest, AWarmedKeyThatHandsOutMemoryIsNotRunBeside) {
  HeldThread held;
  Cache cache(held.options({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  held.wait();
  float* memory = nullptr;
  const auto fn = [&](cudaStream_t on) {
    CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), kSize * sizeof(float), on));
    CUDA_OK(cudaMemsetAsync(memory, 0, kSize * sizeof(float), on));
    return launch(add, kGrid, kBlock, on, memory, kSize, 1.0f);
  };
  EXPECT_TRUE(cache.warm(key("k"), stream, fn).ok());
  const auto use = [&] {
    EXPECT_TRUE(cache.run(key("k"), stream, fn).ok());
    std::vector<float> values(kSize);
    CUDA_OK(cudaMemcpyAsync(values.data(), memory, kSize * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(values, std::vector<float>(kSize, 1));
    EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
  };
  use();
  held.release();
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
  use();
  CUDA_OK(cudaStreamSynchronize(stream));
}

// A launch into a capturing stream fails and leaves the key its new table, which the device must not write yet.
TEST_F(BackgroundTest, ATableThatWasNeverLaunchedServesAnotherMember) {
  Options options;
  force(&options, Sharing::kTable);
  Cache cache(options);
  const auto member = [&](int number, int size) {
    return cache.run(key("member", number), stream, params(1.0f), [&, size](Recorder& rec, Slot<float> value) {
      for (int i = 0; i < 3; ++i) rec.launch(add, {kGrid, kBlock}, data.get(), size, value);
    });
  };
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorStreamCaptureUnsupported);
  EXPECT_FALSE(member(1, kSize / 2).ok());
  EXPECT_TRUE(member(2, kSize).ok());
  expect_sum(3);
}

// A working executable ends a series of failures, as it does without background threads.
TEST_F(BackgroundTest, ABackOffDoesNotGrowOverSuccesses) {
  for (const int threads : {0, 1}) {
    data.write(std::vector<float>(kSize, 0));
    Cache cache(with_threads(unshared(1), threads));
    std::uint64_t backoffs = 0;
    for (int round = 0; round < 6; ++round) {
      HeldThread::fail(cudaErrorUnknown);
      EXPECT_TRUE(run_add(cache, key("k")).ok());
      (void)cache.wait_until_ready();
      for (int i = 0; i < 100 && cache.stats().live_executables == 0; ++i) {
        EXPECT_TRUE(run_add(cache, key("k")).ok());
        (void)cache.wait_until_ready();
      }
      EXPECT_RUN(kReplayed, run_add(cache, key("k")));
      const std::uint64_t now = cache.stats().eager(EagerReason::kBackoff);
      EXPECT_EQ(now - std::exchange(backoffs, now), 1u) << "round " << round << ", threads " << threads;
      // Another key evicts it.
      EXPECT_TRUE(run_add(cache, key("other")).ok());
      EXPECT_TRUE(cache.wait_until_ready().ok());
    }
  }
}

// Like warm() of a key that no thread is preparing.
TEST_F(BackgroundTest, WarmChecksItsStreamWhileTheKeyIsPrepared) {
  HeldThread held;
  Cache cache(held.options({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  held.wait();
  EXPECT_RUN(kEager, run_chain(cache, 1, 3, 1));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kFailedPrecondition, cache.warm(key("chain", 1), stream, params(1.0f), chain(3)));
  EXPECT_FAILURE(kFailedPrecondition, run_chain(cache, 1, 3, 1));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  held.release();
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
}

// Background threads break no capture of a run, in any mode.
TEST_F(BackgroundTest, CapturesInGlobalModeStayWhole) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kUpdatesAcross, Sharing::kTable}) {
    for (const bool fails : {false, true}) {
      Options options = with_threads({}, 2);
      options.capture_mode = cudaStreamCaptureModeGlobal;
      force(&options, sharing);
      options.max_executables = 3;
      Cache cache(options);
      for (int number = 0; number < 30; ++number) {
        if (fails && number % 3 == 0) HeldThread::fail(cudaErrorMemoryAllocation);
        EXPECT_TRUE(cache
                        .run(key("member", number), stream, params(1.0f),
                             [&](Recorder& rec, Slot<float> v) {
                               for (int i = 0; i < 40; ++i) {
                                 rec.launch(add, {dim3(2 + number % 3), kBlock}, data.get(), kSize, v);
                               }
                               if (is_capturing(rec.stream())) {
                                 std::thread([&] { (void)cache.wait_until_ready(); }).join();
                               }
                             })
                        .ok());
        (void)cache.wait_until_ready();
      }
      hostrt::clear_failures();
      EXPECT_EQ(cache.stats().capture_failures, 0u);
      EXPECT_EQ(cache.stats().captures + cache.stats().eager(EagerReason::kBudget), 30u);
    }
  }
}

// `ready` never decreases, and `all` includes it.
TEST_F(BackgroundTest, TwoThreadsWaitWhileKeysAreAdded) {
  Cache cache(with_threads(unshared(1000)));
  std::atomic<bool> stop{false};
  std::atomic<int> falls{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      while (!stop) {
        std::size_t last = 0;
        (void)cache.wait_until_ready(std::chrono::seconds(10), [&](std::size_t ready, std::size_t all) {
          if (ready <= std::exchange(last, ready) || ready > all) ++falls;
        });
      }
    });
  }
  for (int i = 0; i < 3000; ++i) EXPECT_TRUE(run_chain(cache, i, 1, 1).ok());
  stop = true;
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(falls, 0);
}

// A program that does not use the first device gets no context there. Since CUDA 12 cudaSetDevice creates one.
TEST_F(BackgroundTest, ThreadsMakeNoOtherDeviceCurrent) {
  hostrt::set_device_count(2);
  CUDA_OK(cudaSetDevice(1));
  {
    const Stream own;
    Options options = with_threads({});
    options.device = 1;
    Cache cache(options);
    hostrt::reset_calls();
    for (int i = 0; i < 5; ++i) EXPECT_RUN(kEager, cache.run(key("chain", i), own, params(1.0f), chain(3)));
    EXPECT_TRUE(cache.wait_until_ready().ok());
    CUDA_OK(cudaStreamSynchronize(own));
  }
  EXPECT_LE(hostrt::calls("cudaSetDevice"), 1u);  // for the thread's own device
  CUDA_OK(cudaSetDevice(0));
}

// Without room nothing is uploaded, so no stream is needed.
TEST_F(BackgroundTest, WarmWithoutRoomMakesNoStream) {
  Cache cache(unshared(1));
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  hostrt::fail_call("cudaStreamCreateWithFlags", 1, cudaErrorUnknown);
  EXPECT_TRUE(cache.warm(key("recorded"), stream, params(1.0f), chain(3)).ok());
  hostrt::clear_failures();
  EXPECT_EQ(cache.stats().live_templates, 2u);
}

// Whatever fails meanwhile, each run is done once, and every key is replayed in the end.
TEST_F(BackgroundTest, CallsFailWhileKeysAreAddedAndErased) {
  constexpr const char* kCalls[] = {"cudaGraphInstantiate", "cudaGraphUpload"};
  constexpr int kKeys = 9, kRuns = 150;
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Options options = with_threads({}, 1 + static_cast<int>(seed % 2));
    options.max_executables = 1 + static_cast<int>(seed % 5);
    options.max_templates = seed % 3 == 0 ? 2 : 100;
    options.executables_per_key = 1 + static_cast<int>(seed / 3 % 2);
    force(&options, std::array{Sharing::kAuto, Sharing::kUpdatesAcross, Sharing::kTable, Sharing::kNever}[seed % 4]);
    force(seed % 5 < 2 ? Patching::kDeviceUpdated : Patching::kPerNode);
    const std::uint64_t misuses = hostrt::misuses();
    Cache cache(options);
    std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
    std::vector<std::thread> threads;
    std::array<double, 3> wanted{};
    for (int i = 0; i < 3; ++i) sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
    std::atomic<int> done{0};
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        std::minstd_rand random(seed * 3 + static_cast<unsigned>(i) + 1);
        const auto below = [&](unsigned n) { return static_cast<int>(random() / 7 % n); };
        const Stream own;
        float* const sum = sums[static_cast<std::size_t>(i)]->get();
        for (int run = 0; run < kRuns; ++run) {
          const int number = below(kKeys), nodes = 2 + number % 3;
          const auto value = static_cast<float>(1 + below(3));
          const auto fn = [nodes](Recorder& rec, Slot<float*> to, Slot<float> v) {
            for (int n = 0; n < nodes; ++n) rec.launch(add, {kGrid, kBlock}, to, kSize, v);
          };
          if (below(10) == 0) (void)cache.warm(key("k", number), own, params(sum, value), fn);
          if (below(20) == 0) cache.erase(key("k", below(kKeys)));
          if (below(60) == 0) cache.clear();
          if (below(20) == 0) cache.pin(key("k", below(kKeys)));
          if (below(10) == 0) cache.unpin(key("k", below(kKeys)));
          if (below(30) == 0) (void)cache.wait_until_ready(std::chrono::milliseconds(below(3)));
          const auto outcome = cache.run(key("k", number), own, params(sum, value), fn);
          EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
          wanted[static_cast<std::size_t>(i)] += nodes * value;
        }
        CUDA_OK(cudaStreamSynchronize(own));
        ++done;
      });
    }
    std::minstd_rand random(seed + 77);
    while (done < 3) {
      if (seed % 2 == 0) {
        const auto error = random() % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorUnknown;
        hostrt::fail_call(kCalls[random() / 7 % 2], 1, error);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    for (std::thread& thread : threads) thread.join();
    hostrt::clear_failures();
    (void)cache.wait_until_ready();
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sums[i]->read(), std::vector<float>(kSize, static_cast<float>(wanted[i])));
    }
    for (int number = 0; number < kKeys; ++number) cache.unpin(key("k", number));
    EXPECT_LE(cache.stats().live_executables, static_cast<std::size_t>(options.max_executables));
    // Nothing stays locked: one key after another runs as a graph.
    for (int number = 0; number < kKeys; ++number) {
      bool graph = false;
      for (int run = 0; run < 3000 && !graph; ++run) {
        const auto outcome = cache.run(key("last", number), stream, params(0.0f), chain(3));
        graph = outcome.ok() && *outcome != Outcome::kEager;
        EXPECT_TRUE(cache.wait_until_ready(std::chrono::seconds(30)).ok());
      }
      EXPECT_TRUE(graph) << number;
    }
    EXPECT_EQ(hostrt::misuses(), misuses) << hostrt::last_misuse();
  }
}

// A step's hit is made without a call into the library, even with an executable that a background thread has made.
TEST_F(BackgroundTest, StepsMeetBackgroundThreads) {
  for (const int executables : {1, 2}) {
    data.write(std::vector<float>(kSize, 0));
    calls = 0;
    Options options = with_threads(unshared(4));
    options.executables_per_key = executables;
    Cache cache(options);
    auto step = cache.prepare(key("k"), [this](cudaStream_t on) {
      ++calls;
      return add_one(on);
    });
    const Stream other;
    EXPECT_RUN(kEager, step.run(stream));
    EXPECT_TRUE(step.run(other).ok());
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_TRUE(cache.wait_until_ready().ok());
    EXPECT_TRUE(step.run(other).ok());
    EXPECT_TRUE(cache.wait_until_ready().ok());
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_RUN(kReplayed, step.run(stream));
    EXPECT_RUN(kReplayed, step.run(stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_RUN(kReplayed, step.run(other));
    CUDA_OK(cudaStreamSynchronize(other));
    cache.erase(key("k"));
    EXPECT_RUN(kEager, step.run(stream));
    EXPECT_TRUE(cache.wait_until_ready().ok());
    EXPECT_RUN(kReplayed, step.run(stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    expect_sum(8);
  }
}

// A context is lost while tasks wait and others are running.
TEST_F(BackgroundTest, AFatalErrorEndsTheCacheWithWorkLeft) {
  for (int round = 0; round < 20; ++round) {
    const Stream own;
    Cache cache(with_threads({}, 1 + round % 2));
    HeldThread::fail(cudaErrorUnknown);
    hostrt::fail_call("cudaGraphInstantiate", 3 + round, cudaErrorIllegalAddress);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        for (int run = 0; run < 40; ++run) {
          (void)cache.run(key("k", (run + 3 * i) % 20), own, params(1.0f), [](Recorder& rec, Slot<float>) {
            rec.launch(add, {kGrid, kBlock}, static_cast<float*>(nullptr), 0, 1.0f);
          });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    (void)cache.wait_until_ready();
    hostrt::clear_failures();
  }
}

// An exception of `progress` passes through, and the next call returns the error.
TEST_F(BackgroundTest, AnExceptionOfProgressLosesNoError) {
  Cache cache(with_threads({}));
  HeldThread::fail(cudaErrorUnknown);
  EXPECT_RUN(kEager, run_add(cache, key("fails")));
  const auto throws = [](std::size_t, std::size_t) { throw std::runtime_error("progress"); };
  EXPECT_THROW((void)cache.wait_until_ready(std::chrono::minutes(1), throws), std::runtime_error);
  EXPECT_FAILURE(kInternal, cache.wait_until_ready());
}

// The graph of a key that has lost its template is read again each time. The executable must change hands anyway.
TEST_F(BackgroundTest, SiblingsWithFewTemplatesRunAsGraphsInTheEnd) {
  constexpr std::uint64_t kRuns = 40;
  Options options = with_threads(renting(1));
  options.max_templates = 1;
  Cache cache(options);
  for (std::uint64_t i = 0; i < kRuns; ++i) {
    EXPECT_TRUE(run_chain(cache, static_cast<int>(i % 2), 3, 1).ok());
    EXPECT_TRUE(cache.wait_until_ready().ok());
  }
  expect_sum(3.0f * kRuns);
  EXPECT_LT(cache.stats().outcome(Outcome::kEager), kRuns);
}

#endif

}  // namespace
}  // namespace graphcache::test
