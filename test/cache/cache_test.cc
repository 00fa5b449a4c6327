// The cache on either runtime: every result is computed by kernels and compared with what the host expects.
#include "graphcache/cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

// ---- The forms of a run ---------------------------------------------------------------------------------------------

TEST_F(CacheTest, WithoutAStreamTakesTheStreamOfTheOptionsWhichIsThePerThreadDefaultStream) {
  Cache by_default, cache({.stream = stream});
  cudaStream_t seen = nullptr;
  const auto run = [&] { return by_default.run(key("k"), [&](cudaStream_t on) { return add_one(seen = on); }); };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_EQ(seen, cudaStreamPerThread);
  EXPECT_RUN(kReplayed, run());
  expect_sum(2);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), [&](Recorder& rec) { return add_one(seen = rec.stream()); }));
  EXPECT_EQ(seen, static_cast<cudaStream_t>(stream));
  expect_sum(3);
}

TEST_F(CacheTest, TakesFunctionsOfStreamAndOfRecorderThatReturnNothingAnErrorOrAStatus) {
  Cache cache(unshared());
  for (int i = 0; i < 2; ++i) {
    const Outcome wanted = i == 0 ? Outcome::kInstantiated : Outcome::kReplayed;
    EXPECT_TRUE(did(wanted, cache.run(key(1), stream, [&](cudaStream_t on) { add_one(on); })));
    EXPECT_TRUE(did(wanted, cache.run(key(2), stream, [&](cudaStream_t on) { return add_one(on); })));
    EXPECT_TRUE(did(wanted, cache.run(key(3), stream, [&](cudaStream_t on) {
      add_one(on);
      return absl::OkStatus();
    })));
    EXPECT_TRUE(did(wanted, cache.run(key(4), stream, [&](Recorder& rec) { add_one(rec.stream()); })));
    EXPECT_TRUE(did(wanted, cache.run(key(5), stream, [&](Recorder& rec) { return add_one(rec.stream()); })));
    EXPECT_TRUE(did(wanted, cache.run(key(6), stream, params(1.0f), [&](Recorder& rec, Slot<float> one) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
      return absl::OkStatus();
    })));
  }
  expect_sum(12);
}

TEST_F(CacheTest, OutcomesInSequence) {
  Cache cache;
  const auto run = [&](float value) { return run_add(cache, stream, value); };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_RUN(kReplayed, run(1));
  EXPECT_RUN(kPatched, run(10));
  EXPECT_RUN(kReplayed, run(10));
  EXPECT_RUN(kPatched, run(1));  // the value of the capture, but the executable holds the previous run's
  expect_sum(23);
  EXPECT_EQ(calls, 1);
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.outcome(Outcome::kInstantiated), 1u);
  EXPECT_EQ(stats.outcome(Outcome::kReplayed), 2u);
  EXPECT_EQ(stats.outcome(Outcome::kPatched), 2u);
  EXPECT_EQ(stats.patched_nodes, 2u);
  EXPECT_EQ(stats.captures, 1u);
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.runs(), 5u);
  EXPECT_DOUBLE_EQ(stats.hit_rate(), 0.8);
}

// ---- Which runs are the same ----------------------------------------------------------------------------------------

TEST_F(CacheTest, KeyEqualityDecides) {
  Cache cache(unshared());
  const auto run = [&](const Key& which, float value) {
    return cache.run(which, stream, [&, value](cudaStream_t on) { return add_value(on, value); });
  };
  EXPECT_RUN(kInstantiated, run(key("k", 1), 1));
  EXPECT_RUN(kInstantiated, run(key("k", true), 10));
  EXPECT_RUN(kInstantiated, run(key("k", "1"), 100));
  EXPECT_RUN(kInstantiated, run(Key(), 1000));
  EXPECT_RUN(kReplayed, run(key(std::string("k"), 1u), -1));  // the captured value of the equal key, not this one
  expect_sum(1112);
}

// Functions have no closures, so their data is here.
float* target = nullptr;
cudaError_t add_1(cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 1.0f); }
cudaError_t add_10(cudaStream_t on) { return launch(add, kGrid, kBlock, on, target, kSize, 10.0f); }
void add_100_quietly(cudaStream_t on) noexcept { (void)launch(add, kGrid, kBlock, on, target, kSize, 100.0f); }
void add_1000_quietly(cudaStream_t on) noexcept { (void)launch(add, kGrid, kBlock, on, target, kSize, 1000.0f); }

TEST_F(CacheTest, OneKeyAtTwoFunctionsIsTwoEntries) {
  target = data.get();
  float sum = 0;
  // Runs each function twice, which adds this to the sum.
  const auto expect_apart = [&](const char* name, const auto& functions, float adds) {
    SCOPED_TRACE(name);
    Cache cache(unshared());
    for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
      for (const auto& fn : functions) EXPECT_TRUE(did(outcome, cache.run(key("k"), stream, fn)));
    }
    expect_sum(sum += adds);
  };
  using Function = cudaError_t (*)(cudaStream_t);
  using Quiet = void (*)(cudaStream_t) noexcept;
  using Std = std::function<cudaError_t(cudaStream_t)>;
  using StdVoid = std::function<void(cudaStream_t)>;  // Takes functions that return an error, or are noexcept.
  expect_apart("functions", std::vector<Function>{add_1, add_10}, 22);
  expect_apart("noexcept functions", std::vector<Quiet>{add_100_quietly, add_1000_quietly}, 2200);
  expect_apart("std::function",
               std::vector<Std>{add_1, add_10, [&](cudaStream_t on) { return add_value(on, 100); },
                                [&](cudaStream_t on) { return add_value(on, 1000); }},
               2222);
  expect_apart("std::function of another signature",
               std::vector<StdVoid>{add_1, add_10, add_100_quietly, add_1000_quietly}, 2222);
  Cache cache;
  const Function pointer = add_1;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, pointer));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, add_1));  // the function itself decays to the pointer
  expect_sum(sum + 2);
}

// A type that callers know only by its base.
struct Layer {
  virtual ~Layer() = default;
  virtual cudaError_t operator()(cudaStream_t on) const = 0;
};
struct Adds1 : Layer {
  cudaError_t operator()(cudaStream_t on) const override { return add_1(on); }
};
struct Adds10 : Layer {
  cudaError_t operator()(cudaStream_t on) const override { return add_10(on); }
};

TEST_F(CacheTest, OneKeyAtTwoVirtualFunctionsIsTwoEntries) {
  Cache cache(unshared());
  target = data.get();
  const Adds1 adds_1;
  const Adds10 adds_10;
  for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
    for (const Layer* layer : {static_cast<const Layer*>(&adds_1), static_cast<const Layer*>(&adds_10)}) {
      EXPECT_TRUE(did(outcome, cache.run(key("k"), stream, *layer)));
      EXPECT_TRUE(did(outcome, cache.run(key("ref"), stream, std::ref(*layer))));
    }
  }
  expect_sum(44);
}

int add_1_and_count(cudaStream_t on) { return static_cast<int>(add_1(on)) + 1; }

// Two of one type could call different functions, and would be taken for each other.
TEST_F(CacheTest, StdFunctionsThatHideWhatTheyCallAreRefused) {
  Cache cache;
  target = data.get();
  using Fn = std::function<void(cudaStream_t)>;
  struct Member {
    cudaError_t enqueue(cudaStream_t on) const { return add_1(on); }
  } member;
  const std::function<cudaError_t(cudaStream_t)> other = add_1;
  const auto lambda = [](cudaStream_t on) { return add_1(on); };
  const Fn hidden[] = {add_1_and_count, std::bind(&Member::enqueue, &member, std::placeholders::_1),
                       std::bind_front(&Member::enqueue, &member), other, std::ref(lambda)};
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, std::bind_front(&Member::enqueue, &member)));
  for (const Fn& fn : hidden) {
    EXPECT_ERROR(kInvalidArgument, cache.run(key("k"), stream, fn), "name the function in the key");
    EXPECT_FAILURE(kInvalidArgument, cache.prepare(key("k"), fn).run(stream));
    EXPECT_FAILURE(kInvalidArgument, cache.warm(key("k"), stream, fn));
  }
  expect_sum(0);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) { hidden[0](on); }));
  expect_sum(1);
}

TEST_F(CacheTest, ConstAndTemporaryFunctionsAreOnePlace) {
  Cache cache;
  const auto fn = [&](cudaStream_t on) { return add_one(on); };
  auto copy = fn;
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, copy));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, std::move(copy)));
  expect_sum(3);
}

// ---- Streams that cannot be captured --------------------------------------------------------------------------------

TEST_F(CacheTest, ColdRunOnACapturingStreamFailsAndLeavesTheCaptureWhole) {
  for (const int max_executables : {64, 0}) {
    Cache cache({.max_executables = max_executables});
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(add_one(stream));
    const auto outcome = run_add(cache, key("my label"));
    EXPECT_ERROR(kFailedPrecondition, outcome, "my label");
    EXPECT_NE(cuda_error(outcome.status()), cudaSuccess);
    CUDA_OK(add_one(stream));
    EXPECT_EQ(end_capture(stream), 2u);
    EXPECT_EQ(calls, 0);
  }
  expect_sum(0);
}

TEST_F(CacheTest, HitOnACapturingStreamFailsAndTheCacheGoesOn) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_ERROR(kFailedPrecondition, run_add(cache, key("k")), "already capturing", "another thread",
               "inline_in_foreign_capture");
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);  // as cache.h says
  cudaGetLastError();
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(2);
  EXPECT_EQ(calls, 1);
}

TEST_F(CacheTest, RefusesAStreamOfAnotherDevice) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  Cache cache({.device = 1});
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
  EXPECT_EQ(calls, 0);
}

// Its work would go to the stream that this name means for the cache's device.
TEST_F(CacheTest, RefusesToInlineOnThePerThreadStreamOfAnotherDevice) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  Cache cache({.device = 0, .inline_in_foreign_capture = true}), outer({.device = 0});
  const auto fn = [&](cudaStream_t) { ++calls; };
  const auto expect_refused = [&] {
    EXPECT_ERROR(kInvalidArgument, cache.run(key("k"), cudaStreamPerThread, fn), "cudaStreamPerThread",
                 "which is device 1");
  };
  const Event forked;
  CUDA_OK(cudaSetDevice(1));
  const Event joined;
  CUDA_OK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  expect_refused();
  EXPECT_EQ(end_capture(cudaStreamPerThread), 0u);
  CUDA_OK(cudaSetDevice(0));
  EXPECT_RUN(kEager, outer.run(key("outer"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaEventRecord(forked, on));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaStreamWaitEvent(cudaStreamPerThread, forked, 0));
    expect_refused();
    CUDA_OK(cudaEventRecord(joined, cudaStreamPerThread));
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamWaitEvent(on, joined, 0));
  }));
  EXPECT_EQ(calls, 0);
}

// It cannot be asked for its device.
TEST_F(CacheTest, ACapturingStreamGivesACacheNoDevice) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  CUDA_OK(cudaSetDevice(1));
  {
    const Stream other;
    const Event joined;
    DeviceBuffer<float> memory(kSize);
    CUDA_OK(cudaSetDevice(0));
    const auto fn = [&](cudaStream_t on) {
      CUDA_OK(cudaSetDevice(1));  // A launch needs the device of its stream.
      return launch(add, kGrid, kBlock, on, memory.get(), kSize, 1.0f);
    };
    Cache cache, disabled({.max_executables = 0}), inlining({.inline_in_foreign_capture = true}), inner, outer;
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    EXPECT_ERROR(kFailedPrecondition, cache.warm(key("k"), other, fn), "already capturing", "(\"k\")");
    EXPECT_ERROR(kFailedPrecondition, cache.run(key("k"), other, fn), "already capturing", "(\"k\")");
    EXPECT_FAILURE(kFailedPrecondition, disabled.run(key("k"), other, fn));
    EXPECT_RUN(kInlined, inlining.run(key("k"), other, fn));
    EXPECT_EQ(end_capture(other), 1u);
    const Event forked;
    EXPECT_RUN(kInstantiated, outer.run(key("outer"), stream, [&](cudaStream_t on) {
      CUDA_OK(cudaEventRecord(forked, on));
      CUDA_OK(cudaStreamWaitEvent(other, forked, 0));
      EXPECT_RUN(kInlined, inner.run(key("k"), other, fn));
      CUDA_OK(cudaEventRecord(joined, other));
      CUDA_OK(cudaStreamWaitEvent(on, joined, 0));
    }));
    for (Cache* const each : {&cache, &disabled, &inlining, &inner}) {
      EXPECT_EQ(each->options().device, Options::kCurrentDevice);
      EXPECT_SUCCESS(each->status());
      EXPECT_SUCCESS(each->run(key("k"), other, fn));
      EXPECT_EQ(each->options().device, 1);
    }
    EXPECT_EQ(current_device(), 0);
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_EQ(memory.first(), 5);
  }
}

TEST_F(CacheTest, RunsAreRightWhicheverDeviceIsCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  Cache cache(unshared());
  DeviceBuffer<unsigned char> bytes(16);
  const auto run = [&](const char* which, float value) {
    const unsigned char* const from = bytes.get() + static_cast<int>(value);
    return cache.run(key(which), stream, params(value, from, static_cast<int>(value)),
                     [&](Recorder& rec, Slot<float> v, Slot<const unsigned char*> source, Slot<int> byte) {
                       rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
                       rec.memset(bytes.get() + 8, byte, 8);
                       rec.memcpy(bytes.get(), source, 1);
                     });
  };
  EXPECT_RUN(kInstantiated, run("k", 1));
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaFree(nullptr));  // makes the other device's context current
  EXPECT_RUN(kReplayed, run("k", 1));
  EXPECT_RUN(kPatched, run("k", 2));
  EXPECT_RUN(kInstantiated, run("cold", 3));
  EXPECT_RUN(kPatched, run("cold", 4));
  std::thread([&] {  // a thread whose first CUDA call is a patch, and one with another current device
    EXPECT_RUN(kPatched, run("k", 5));
    CUDA_OK(cudaSetDevice(1));
    EXPECT_RUN(kPatched, run("k", 6));
  })
      .join();
  EXPECT_EQ(current_device(), 1);
  CUDA_OK(cudaSetDevice(0));
  expect_sum(22);
  EXPECT_EQ(bytes.read()[15], 6);
}

// The device does not write nodes of another device, because that would be an illegal address.
TEST_F(CacheTest, SlotsOfNodesOnAnotherDeviceFollowEachRun) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  OtherDevice<float> other(kSize);
  float sum = 0;
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated, Patching::kAuto}) {
    SCOPED_TRACE(static_cast<int>(patching));
    force(patching);
    Cache cache(unshared());
    const auto run = [&](float value) {
      sum += value;
      return cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
        other.fork(rec.stream(), [&](cudaStream_t forked) {
          for (const int current : {1, 0, 1}) {  // it runs on the stream's device, whichever device is current
            CUDA_OK(cudaSetDevice(current));
            rec.on(forked).launch(add, {kGrid, kBlock}, other.memory().get(), kSize, v);
          }
        });
      });
    };
    EXPECT_RUN(kInstantiated, run(1));
    EXPECT_RUN(kPatched, run(2));
    EXPECT_RUN(kPatched, run(3));
    CUDA_OK(cudaSetDevice(1));
    EXPECT_RUN(kPatched, run(4));
    CUDA_OK(cudaSetDevice(0));
    std::thread([&] { EXPECT_RUN(kPatched, run(5)); }).join();  // its first CUDA call is a patch
    expect_sum(sum);
    EXPECT_EQ(other.memory().read(), std::vector<float>(kSize, 3 * sum));
  }
}

// In captured and in direct runs. The graph belongs to the cache's device in both.
TEST_F(CacheTest, TheCallersDeviceIsCurrentWhateverFnLeaves) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  float sum = 0;
  for (const int executables : {0, 8}) {
    for (const int before : {0, 1}) {
      SCOPED_TRACE(testing::Message() << executables << " executables, device " << before);
      CUDA_OK(cudaSetDevice(0));
      force(Patching::kDeviceUpdated);
      Cache cache(unshared(executables));
      int calls = 0;
      const auto run = [&](float value, bool throws) {
        CUDA_OK(cudaSetDevice(before));
        try {
          EXPECT_SUCCESS(cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
            rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
            ++calls;
            EXPECT_EQ(current_device(), 0);
            CUDA_OK(cudaSetDevice(1));
            if (throws) throw std::runtime_error("of fn");
          }));
          EXPECT_FALSE(throws);
          sum += value;
        } catch (const std::runtime_error&) {
          sum += value;  // By the direct call of fn.
        }
        EXPECT_EQ(current_device(), before);
      };
      run(1, true);
      run(2, false);
      run(3, false);
      EXPECT_EQ(calls, 3);
      EXPECT_EQ(cache.stats().refused_device_updates, 0u);
      CUDA_OK(cudaSetDevice(0));
      expect_sum(sum);
    }
  }
}

// cudaStreamPerThread is another stream while another device is current.
TEST_F(CacheTest, TheRecorderIsRightWhicheverDeviceFnMakesCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  const auto on_second = [](const auto& f) {
    CUDA_OK(cudaSetDevice(1));
    f();
    CUDA_OK(cudaSetDevice(0));
  };
  Cache cache;
  const auto numbers = std::make_shared<std::vector<float>>(kSize, 3.0f);
  for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(wanted, cache.run(key("keep"), cudaStreamPerThread, [&](Recorder& rec) {
      on_second([&] { rec.keep(numbers); });
      return cudaMemcpyAsync(data.get(), numbers->data(), data.bytes(), cudaMemcpyHostToDevice, rec.stream());
    })));
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT_EQ(data.read(), *numbers);
  }
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("on"), cudaStreamPerThread, [&](Recorder& rec) {
    on_second([&] { rec.on(stream).launch(fill, {kGrid, kBlock}, data.get(), kSize, 4.0f); });
  }));
  CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
}

TEST_F(CacheTest, SwitchesAndRestoresAreRightWhicheverDeviceIsCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  Cache cache(renting());
  const auto run = [&](const char* which, float constant, float value) {
    return cache.run(key(which), stream, params(value), [&, constant](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, constant);
    });
  };
  EXPECT_RUN(kInstantiated, run("a", 10, 1));
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaFree(nullptr));
  EXPECT_RUN(kUpdated, run("b", 100, 2));
  EXPECT_RUN(kSwitched, run("a", 0, 3));
  std::thread([&] {  // a thread whose first CUDA calls are those of a switch
    CUDA_OK(cudaSetDevice(1));
    EXPECT_RUN(kSwitched, run("b", 0, 4));
  })
      .join();
  EXPECT_TRUE(cache.erase(key("b")));
  EXPECT_RUN(kRestored, run("a", 0, 5));
  EXPECT_EQ(current_device(), 1);
  CUDA_OK(cudaSetDevice(0));
  expect_sum(15 + 3 * 10 + 2 * 100);
}

}  // namespace
}  // namespace graphcache::test
