// Prepared steps on either runtime: they do what Cache::run() does.
#include "graphcache/step.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cache_support.h"
#include "graph/host_memory_support.h"
#include "launch.h"
#include "runs/threads_support.h"

namespace graphcache::test {
namespace {

class StepTest : public CacheTest {
 protected:
  // Adds the value of each run to every element.
  auto adder() {
    return [this](Recorder& rec, Slot<float> value) {
      ++calls;
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
    };
  }
  // Adds a constant.
  auto adder_of(float constant) {
    return [this, constant](Recorder& rec) {
      ++calls;
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, constant);
    };
  }
};

TEST_F(StepTest, FollowsItsValuesAndSharesTheEntryWithRunsOfTheSameFunction) {
  Cache cache;
  auto fn = adder();
  auto step = cache.prepare(key("k"), fn);
  EXPECT_EQ(step.key(), key("k"));
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(1.0f), fn));
  EXPECT_RUN(kReplayed, step.run(stream, params(1.0f)));
  expect_sum(2);
  EXPECT_RUN(kPatched, step.run(stream, params(10.0f)));
  EXPECT_RUN(kReplayed, step.run(stream, params(10.0f)));
  expect_sum(22);
  EXPECT_RUN(kPatched, step.run(stream, params(1.0f)));
  expect_sum(23);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(5.0f), fn));
  EXPECT_RUN(kReplayed, step.run(stream, params(5.0f)));
  EXPECT_RUN(kPatched, step.run(stream, params(1.0f)));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, params(1.0f), fn));
  expect_sum(35);
  EXPECT_EQ(calls, 1);
}

// One function with values of two types has two entries. The bytes of the values are equal here.
TEST_F(StepTest, ValuesOfAnotherTypeAreOfAnotherEntry) {
  Cache cache;
  auto step = cache.prepare(key("k"), [this](Recorder& rec, auto value) {
    ++calls;
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, typename decltype(value)::value_type{3});
  });
  EXPECT_RUN(kInstantiated, step.run(stream, params(0)));
  EXPECT_RUN(kReplayed, step.run(stream, params(0)));
  EXPECT_TRUE(step.run(stream, params(0u)).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_RUN(kReplayed, step.run(stream, params(0)));
  EXPECT_EQ(calls, 2);
}

TEST_F(StepTest, WithoutAStreamTakesTheStreamOfTheOptions) {
  Cache cache({.stream = stream});
  auto step = cache.prepare(key("k"), adder());
  EXPECT_RUN(kInstantiated, step.run(params(1.0f)));
  EXPECT_RUN(kReplayed, step.run(params(1.0f)));
  EXPECT_RUN(kReplayed, step.run(stream, params(1.0f)));
  expect_sum(3);
  EXPECT_EQ(calls, 1);
}

TEST_F(StepTest, StreamsTakeTurns) {
  Cache cache;
  auto step = cache.prepare(key("k"), adder_of(1));
  const StreamOf other(cudaStreamDefault, 0);
  int runs = 0;
  const cudaStream_t turns[] = {
      stream,           other,   stream, nullptr, cudaStreamPerThread, other, cudaStreamPerThread,
      cudaStreamLegacy, nullptr, stream};
  for (cudaStream_t on : turns) {
    ASSERT_TRUE(step.run(on).ok());
    ++runs;
    CUDA_OK(cudaDeviceSynchronize());
  }
  expect_sum(static_cast<float>(runs));
  EXPECT_EQ(calls, 1);
}

// One executable for two keys: each run evicts the other key's, or takes it as a sibling. So a step must not use what
// it remembers of it.
TEST_F(StepTest, KeysInTurnLoseTheirExecutable) {
  for (const ForcedOptions& options : {ForcedOptions(unshared(1)), ForcedOptions(forced(Sharing::kUpdatesAcross))}) {
    Cache cache(options.again());
    reset_sum();
    calls = 0;
    auto one = cache.prepare(key("one"), adder_of(1));
    auto ten = cache.prepare(key("ten"), adder_of(10));
    for (int i = 0; i < 3; ++i) {
      for (auto* each : {&one, &ten}) {
        ASSERT_TRUE(each->run(stream).ok());
        EXPECT_RUN(kReplayed, each->run(stream));
      }
    }
    expect_sum(66);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(cache.stats().live_executables, 1u);
  }
}

// The entry of an erased key is reused for another key.
TEST_F(StepTest, AForgottenKeyIsCapturedAgainAndNoOtherKeysGraphIsRun) {
  Cache cache;
  auto step = cache.prepare(key("k"), adder_of(1));
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cache.erase(key("k")));
    auto other = cache.prepare(key("other", i), adder_of(100));
    EXPECT_RUN(kInstantiated, other.run(stream));
    EXPECT_RUN(kInstantiated, step.run(stream));
    EXPECT_TRUE(cache.erase(key("other", i)));
  }
  cache.clear();
  EXPECT_RUN(kInstantiated, step.run(stream));
  expect_sum(307);
  EXPECT_EQ(calls, 9);
}

TEST_F(StepTest, ACopyHasAFunctionOfItsOwn) {
  Cache cache;
  auto counter = std::make_shared<int>(0);
  std::optional first = cache.prepare(key("k"), [counter, this](cudaStream_t on) {
    ++*counter;
    return add_one(on);
  });
  EXPECT_RUN(kInstantiated, first->run(stream));
  auto second = *first;
  first.reset();
  EXPECT_RUN(kReplayed, second.run(stream));
  cache.clear();
  EXPECT_RUN(kInstantiated, second.run(stream));
  EXPECT_EQ(*counter, 2);
  expect_sum(3);
}

TEST_F(StepTest, AfterTheCacheRunsFail) {
  std::optional<Cache> cache(std::in_place);
  auto step = cache->prepare(key("k"), adder_of(1));
  auto fresh = cache->prepare(key("k"), adder_of(1));
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  cache.reset();
  for (auto* each : {&step, &fresh}) {
    EXPECT_EQ(each->run(stream).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  expect_sum(2);
  EXPECT_EQ(calls, 1);
}

TEST_F(StepTest, InsideAnotherRunBecomesPartOfIt) {
  Cache cache;
  auto step = cache.prepare(key("inner"), adder_of(1));
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  const auto outer = [&] {
    return cache.run(key("outer"), stream, [&](cudaStream_t on) { return step.run(on).status(); });
  };
  EXPECT_TRUE(outer().ok());
  EXPECT_RUN(kReplayed, outer());
  expect_sum(4);
  EXPECT_EQ(cache.stats().outcome(Outcome::kInlined), 1u);
}

TEST_F(StepTest, ADisabledCacheRunsDirectly) {
  Cache cache({.max_executables = 0});
  auto step = cache.prepare(key("k"), adder_of(1));
  EXPECT_RUN(kEager, step.run(stream));
  EXPECT_RUN(kEager, step.run(stream));
  expect_sum(2);
}

TEST_F(StepTest, VerifyModeSeesItsHits) {
  Cache cache({.verify_every = 1});
  float constant = 1;
  auto step = cache.prepare(key("k"), [&](Recorder& rec) {
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, constant);
  });
  ASSERT_TRUE(step.run(stream).ok());
  ASSERT_TRUE(step.run(stream).ok());
  EXPECT_EQ(cache.stats().stale, 0u);
  constant = 2;
  ASSERT_TRUE(step.run(stream).ok());
  EXPECT_EQ(cache.stats().stale, 1u);
}

TEST_F(StepTest, ThreadsHaveCopies) {
  constexpr int kThreads = 8, kRuns = 200;
  Cache cache(unshared());
  const auto step = cache.prepare(key("k"), adder_of(1));
  ASSERT_TRUE(cache.run(key("k"), stream, adder_of(1)).ok());  // so that no thread captures
  in_threads(kThreads, [&](int) {
    auto mine = step;
    for (int run = 0; run < kRuns; ++run) EXPECT_TRUE(mine.run(stream).ok());
  });
  expect_sum(1 + kThreads * kRuns);
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.runs(), 1u + kThreads * kRuns);
  EXPECT_EQ(cache.entries().at(0).outcomes, stats.outcomes);
}

// Keys are erased and evicted while steps run them.
TEST_F(StepTest, OthersEraseAndEvictMeanwhile) {
  constexpr int kThreads = 4, kRuns = 300;
  Cache cache(unshared(2));
  std::vector<std::unique_ptr<DeviceBuffer<float>>> sums;
  std::vector<cudaStream_t> streams(kThreads);
  for (cudaStream_t& each : streams) {
    CUDA_OK(cudaStreamCreate(&each));
    sums.push_back(std::make_unique<DeviceBuffer<float>>(kSize));
  }
  in_threads(kThreads, [&](int thread) {
    const auto i = static_cast<std::size_t>(thread);
    auto step = cache.prepare(key("k", i), [&, i](Recorder& rec) {
      rec.launch(add, {kGrid, kBlock}, sums[i]->get(), kSize, 1.0f);
    });
    for (int run = 0; run < kRuns; ++run) {
      EXPECT_TRUE(step.run(streams[i]).ok());
      if (run % 50 == 7) cache.erase(key("k", (i + 1) % kThreads));
    }
  });
  CUDA_OK(cudaDeviceSynchronize());
  for (const auto& sum : sums) EXPECT_EQ(sum->read(), std::vector<float>(kSize, kRuns));
  for (cudaStream_t each : streams) CUDA_OK(cudaStreamDestroy(each));
}

// The place of a run is looked at anew in each run.
TEST_F(StepTest, AFunctionThatIsSetAnewIsAnotherEntry) {
  Cache cache(unshared());
  static float* target = nullptr;
  target = data.get();
  using Function = cudaError_t (*)(cudaStream_t);
  const Function adds_1 = [](cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 1.0f); };
  const Function adds_10 = [](cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 10.0f); };
  Function pointer = adds_1;
  std::function<cudaError_t(cudaStream_t)> function = adds_1;
  auto of_pointer = cache.prepare(key("pointer"), std::ref(pointer));
  auto of_function = cache.prepare(key("function"), std::ref(function));
  for (int i = 0; i < 6; ++i) {
    function = pointer = i % 2 == 0 ? adds_1 : adds_10;
    const Outcome outcome = i < 2 ? Outcome::kInstantiated : Outcome::kReplayed;
    EXPECT_TRUE(did(outcome, of_pointer.run(stream)));
    EXPECT_TRUE(did(outcome, of_function.run(stream)));
  }
  expect_sum(66);
}

// As a run does, it asks for the kind of memory that is not the device's. Here fn decides by it, as libraries do.
TEST_F(StepTest, AsksForTheKindOfTheMemoryOfValues) {
  using Kind = ReusedMemory::Kind;
  ReusedMemory memory(Kind::kManaged);
  Cache cache;
  auto step = cache.prepare(key("k"), [&](cudaStream_t on, const float* from) {
    cudaPointerAttributes attributes;
    CUDA_OK(cudaPointerGetAttributes(&attributes, from));
    const float by = attributes.type == cudaMemoryTypeManaged ? 2.0f : 3.0f;
    CUDA_OK(launch(scale, kGrid, kBlock, on, data.get(), from, kSize, by));
  });
  const auto run = [&](float wanted) {
    memory.fill(1, kSize);
    const auto outcome = step.run(stream, values(static_cast<const float*>(memory.get())));
    EXPECT_EQ(data.read(), std::vector<float>(kSize, wanted));
    return outcome;
  };
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_RUN(kReplayed, run(2));
  if (!memory.give_out_again(Kind::kDevice)) GTEST_SKIP() << "the allocator has other memory";
  EXPECT_RUN(kInstantiated, run(3));
  EXPECT_RUN(kReplayed, run(3));
}

using StepTestOnHostrt = StepTest;

TEST_F(StepTestOnHostrt, AFailedLaunchRunsDirectlyAndLeavesNoError) {
  Cache cache;
  auto step = cache.prepare(key("k"), adder_of(1));
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorUnknown);
  EXPECT_RUN(kEager, step.run(stream));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(cache.stats().eager_reasons[static_cast<int>(EagerReason::kLaunchFailed)], 1u);
  expect_sum(3);
  EXPECT_TRUE(step.run(stream).ok());
  EXPECT_RUN(kRestored, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  expect_sum(6);
}

// An executable that is destroyed when another key evicts it must not be in flight, whatever the stream of its last
// launch.
TEST_F(StepTestOnHostrt, ExecutablesOfHitsAreNotDestroyedInFlight) {
  Cache cache(unshared(1));
  const auto count = [](void* runs) { ++*static_cast<int*>(runs); };
  const PinnedBuffer<int> runs(1);
  auto step = cache.prepare(key("k"), [&](cudaStream_t on) { return cudaLaunchHostFunc(on, count, runs.get()); });
  EXPECT_RUN(kInstantiated, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(stream));
  EXPECT_RUN(kReplayed, step.run(cudaStreamPerThread));
  CUDA_OK(cudaDeviceSynchronize());
  hostrt::hold(stream);
  EXPECT_RUN(kReplayed, step.run(stream));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(cache.run(key("other"), cudaStreamPerThread, [&](cudaStream_t on) { return add_one(on); }).ok());
  }
  EXPECT_EQ(*runs.get(), 3);
  CUDA_OK(hostrt::release(stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(*runs.get(), 4);
}

TEST_F(StepTestOnHostrt, AHitIsOneCallAlsoOnManyStreamsInTurn) {
  Cache cache;
  auto step = cache.prepare(key("step"), adder());
  ASSERT_TRUE(step.run(stream, params(1.0f)).ok());
  ASSERT_TRUE(step.run(stream, params(1.0f)).ok());
  auto before = hostrt::calls();
  EXPECT_RUN(kReplayed, step.run(stream, params(1.0f)));
  EXPECT_EQ(hostrt::calls() - before, 1u);
  CUDA_OK(cudaStreamSynchronize(stream));

  std::vector<cudaStream_t> streams(48);
  for (cudaStream_t& each : streams) CUDA_OK(cudaStreamCreate(&each));
  for (cudaStream_t each : streams) EXPECT_TRUE(run_add(cache, each, 1.0f).ok());
  before = hostrt::calls();
  for (cudaStream_t each : streams) EXPECT_RUN(kReplayed, run_add(cache, each, 1.0f));
  EXPECT_EQ(hostrt::calls() - before, streams.size());
  expect_sum(99);
  for (cudaStream_t each : streams) CUDA_OK(cudaStreamDestroy(each));
}

}  // namespace
}  // namespace graphcache::test
