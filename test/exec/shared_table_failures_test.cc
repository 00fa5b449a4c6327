// Device-side updates that fail, in executables that keys share by a table and in those of one key. The runtime does
// not report these errors, so the cache must (law 3). On hostrt.
#include <gtest/gtest.h>

#include <vector>

#include "graphcache/hostrt.h"
#include "graphcache/status.h"
#include "sharing_support.h"

namespace graphcache::test {
namespace {

constexpr int kFloats = 64;
constexpr const char* kUpdates[] = {"cudaGraphKernelNodeSetParam", "cudaGraphKernelNodeSetGridDim"};

class SharedTableFailuresTest : public testing::Test {
 protected:
  void SetUp() override {
    hostrt::reset();
    force(&options, Sharing::kTable);
    options.max_executables = 1;
  }
  void TearDown() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    CUDA_OK(cudaPeekAtLastError());
    hostrt::reset();
  }

  // A member whose nodes have other arguments and grids than its siblings', with a slot in one of them.
  struct Bench {
    explicit Bench(const Options& options) : cache(options) {}

    struct Fn {
      int which;
      int* data;
      void operator()(Recorder& rec, Slot<int> v) const {
        const auto grid = static_cast<unsigned>(1 + which % 4);
        rec.launch(blend, {grid, 8}, data, kFloats, 3 + which, 1);
        rec.launch(blend, {1, 8}, data, kFloats, 5, v);
        rec.launch(blend, {grid, 8}, data, kFloats, 7, which);
      }
    };

    absl::StatusOr<Outcome> run(int which, int value) {
      return cache.run(key("member", which), stream, params(value), Fn{which, data.get()});
    }
    void expect_right(int which, int value) {
      std::vector<int> wanted(kFloats, 1);
      data.write(wanted);
      const auto outcome = run(which, value);
      ASSERT_SUCCESS(outcome);
      CUDA_OK(cudaStreamSynchronize(stream));
      const int reach = 8 * (1 + which % 4);
      blend_here(wanted.data(), reach, 3 + which, 1);
      blend_here(wanted.data(), 8, 5, value);
      blend_here(wanted.data(), reach, 7, which);
      EXPECT_EQ(data.read(), wanted) << "member " << which << ", value " << value;
    }

    Stream stream;
    DeviceBuffer<int> data{kFloats};
    Cache cache;
  };

  Options options;
};

testing::AssertionResult tells_of_the_device(const absl::StatusOr<Outcome>& outcome, cudaError_t error) {
  if (outcome.ok()) return testing::AssertionFailure() << "the run " << to_string(*outcome);
  if (cuda_error(outcome.status()) == error && mentions(outcome.status(), "by the device") &&
      mentions(outcome.status(), "member")) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << outcome.status();
}

// The executable was evicted before its error was read. The next run that needs an executable returns the error.
TEST_F(SharedTableFailuresTest, AFailedUpdateIsReportedAlthoughItsExecutableWasEvicted) {
  for (const bool erased : {true, false}) {
    Bench bench(options);
    for (const int which : {0, 1, 2}) bench.expect_right(which, which);
    hostrt::fail_call(kUpdates[0], 1, cudaErrorInvalidValue);
    EXPECT_RUN(kSwitched, bench.run(1, 4));
    hostrt::clear_failures();
    if (erased) {
      EXPECT_TRUE(bench.cache.erase(key("member", 1)));
    } else {
      bench.cache.clear();
    }
    EXPECT_TRUE(tells_of_the_device(bench.run(1, 4), cudaErrorInvalidValue));
    EXPECT_EQ(bench.cache.stats().failed, 1u);
    for (const int which : {1, 0, 1, 2}) bench.expect_right(which, which + 1);
    EXPECT_EQ(bench.cache.stats().failed, 1u);
  }
}

TEST_F(SharedTableFailuresTest, AFailedUpdateIsReportedByAHitOfAnotherKeyIfItsExecutableWasEvicted) {
  options.max_executables = 2;
  Bench bench(options);
  DeviceBuffer<int> other(std::vector<int>(kFloats, 1));
  const auto hit = [&] {
    return bench.cache.run(key("no member"), bench.stream,
                           [&](cudaStream_t s) { CUDA_OK(launch(blend, dim3(1), dim3(8), s, other.get(), 8, 2, 0)); });
  };
  EXPECT_RUN(kInstantiated, hit());
  for (const int which : {0, 1, 2}) bench.expect_right(which, which);
  hostrt::fail_call(kUpdates[0], 1, cudaErrorInvalidValue);
  EXPECT_RUN(kSwitched, bench.run(1, 4));
  hostrt::clear_failures();
  EXPECT_TRUE(bench.cache.erase(key("member", 1)));
  EXPECT_EQ(bench.cache.stats().live_executables, 1u);
  EXPECT_TRUE(tells_of_the_device(hit(), cudaErrorInvalidValue));
  EXPECT_RUN(kReplayed, hit());
  EXPECT_EQ(other.first(), 4);
  EXPECT_EQ(bench.cache.stats().failed, 1u);
}

// The next run that has the executable returns the error, and no later one does.
TEST_F(SharedTableFailuresTest, AFailedUpdateIsReportedByTheNextRunOfTheKeyOrOfASibling) {
  for (const char* const function : kUpdates) {
    for (const int next : {2, 3, 0}) {
      int failed = 0;
      for (int nth = 1;; ++nth) {
        SCOPED_TRACE(testing::Message() << "update " << nth << " by " << function << " fails, then member " << next);
        Bench bench(options);
        for (const int which : {0, 1, 2, 0, 1}) bench.expect_right(which, which);
        hostrt::fail_call(function, nth, cudaErrorInvalidValue);
        const std::uint64_t before = hostrt::failures_injected();
        EXPECT_RUN(kSwitched, bench.run(2, 4));  // not all of these values were written
        hostrt::clear_failures();
        if (hostrt::failures_injected() == before) break;
        ++failed;
        EXPECT_TRUE(tells_of_the_device(bench.run(next, 4), cudaErrorInvalidValue));
        EXPECT_EQ(bench.cache.stats().failed, 1u);
        for (const int which : {2, 3, 2, 0, 1, 2}) bench.expect_right(which, which + 1);
        EXPECT_EQ(bench.cache.stats().failed, 1u);
        EXPECT_SUCCESS(bench.cache.status());
      }
      EXPECT_GE(failed, 2);
    }
  }
}

TEST_F(SharedTableFailuresTest, AnUpdateInFlightIsReportedWhenItHasFailed) {
  Bench bench(options);
  for (const int which : {0, 1, 2}) bench.expect_right(which, which);
  hostrt::hold(bench.stream);
  hostrt::fail_call(kUpdates[0], 1, cudaErrorInvalidValue);
  EXPECT_RUN(kSwitched, bench.run(1, 4));
  EXPECT_RUN(kSwitched, bench.run(2, 4));
  EXPECT_RUN(kReplayed, bench.run(2, 4));
  CUDA_OK(hostrt::release(bench.stream));
  hostrt::clear_failures();
  EXPECT_TRUE(tells_of_the_device(bench.run(2, 4), cudaErrorInvalidValue));
  for (const int which : {2, 3, 0}) bench.expect_right(which, which + 1);
  EXPECT_EQ(bench.cache.stats().failed, 1u);
}

// A launch into a capturing stream fails and leaves the key its new table, which the device must not write yet.
TEST_F(SharedTableFailuresTest, ATableThatWasNeverLaunchedServesAnotherMember) {
  Bench bench(options);
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorStreamCaptureUnsupported);
  EXPECT_FALSE(bench.run(1, 1).ok());
  bench.expect_right(2, 3);
}

// The data of the updater node may still be in transit on a busy stream.
TEST_F(SharedTableFailuresTest, WhatWasWarmedOnABusyStreamIsReadyOnAnother) {
  for (const Sharing sharing : {Sharing::kTable, Sharing::kNever}) {
    force(&options, sharing);
    force(Patching::kDeviceUpdated);
    Bench bench(options);
    Stream busy;
    hostrt::hold(busy);
    EXPECT_SUCCESS(bench.cache.warm(key("member", 1), busy, params(1), Bench::Fn{1, bench.data.get()}));
    EXPECT_RUN(kPatched, bench.run(1, 2));
    CUDA_OK(hostrt::release(busy));
    CUDA_OK(cudaStreamSynchronize(bench.stream));
    for (const int which : {1, 2, 1}) bench.expect_right(which, which + 1);
  }
}

TEST_F(SharedTableFailuresTest, AnUpdateOfSlotsThatFailsIsReportedByTheNextRunOfTheKey) {
  force(&options, Sharing::kNever);
  force(Patching::kDeviceUpdated);
  Bench bench(options);
  bench.expect_right(1, 1);
  hostrt::fail_call(kUpdates[0], 1, cudaErrorInvalidValue);
  EXPECT_RUN(kPatched, bench.run(1, 2));
  hostrt::clear_failures();
  EXPECT_TRUE(tells_of_the_device(bench.run(1, 2), cudaErrorInvalidValue));
  bench.expect_right(1, 2);
  bench.expect_right(1, 3);
  EXPECT_EQ(bench.cache.stats().failed, 1u);
}

// A budget for one plain executable: keys have no table, but they have graphs.
TEST_F(SharedTableFailuresTest, ABudgetThatNoTableFitsIsForPlainExecutables) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kTable}) {
    for (const Share share : {Share::kWhenFull, Share::kAlways}) {
      force(&options, sharing);
      options.share = share;
      options.max_executables = 64;
      options.max_device_bytes = 114'000 + 3 * 2'600 + 100;
      Bench bench(options);
      for (int i = 0; i < 100; ++i) bench.expect_right(i % 2, i);
      EXPECT_EQ(bench.cache.stats().outcome(Outcome::kEager), 0u);
      EXPECT_LE(bench.cache.stats().refused_device_updates, 1u);
    }
  }
}

// Freeing memory waits for all work of the device, which may depend on what the caller does next.
TEST_F(SharedTableFailuresTest, NoRunWaitsForAnotherStreamsWork) {
  Bench bench(options);
  Stream busy;
  DeviceBuffer<int> there(kFloats);
  const auto run_other = [&](int which) {
    return bench.cache.run(key("other", which), bench.stream, [&](Recorder& rec) {
      rec.launch(blend, {1, 8}, bench.data.get(), kFloats, 3 + which, 1);
    });
  };
  ASSERT_SUCCESS(bench.run(0, 1));
  hostrt::hold(busy);
  CUDA_OK(launch(blend, dim3(1), dim3(8), busy, there.get(), kFloats, 3, 4));
  hostrt::reset_calls();
  for (int i = 0; i < 40; ++i) {
    ASSERT_SUCCESS(bench.run(i % 3, i));
    ASSERT_SUCCESS(run_other(i % 2));  // in the table's place
    EXPECT_EQ(cudaStreamQuery(busy), cudaErrorNotReady);
    cudaGetLastError();
  }
  EXPECT_EQ(hostrt::calls("cudaFree") + hostrt::calls("cudaFreeHost"), 0u);
  EXPECT_GT(bench.cache.stats().evictions, 40u);
  hostrt::release(busy);
  CUDA_OK(cudaDeviceSynchronize());
  for (const int which : {0, 1, 2}) bench.expect_right(which, which);
}

// A key whose device-side updates fail does not fail for ever.
TEST_F(SharedTableFailuresTest, ADeviceThatAlwaysFailsIsNotUsedAgain) {
  Bench bench(options);
  for (const int which : {0, 1, 2}) bench.expect_right(which, which);
  hostrt::fail_call(kUpdates[1], 1, cudaErrorInvalidValue, -1);
  int failed = 0;
  for (int i = 0; i < 100; ++i) failed += bench.run(i % 3, i).ok() ? 0 : 1;
  EXPECT_GT(failed, 0);
  EXPECT_LE(failed, 3);
  for (const int which : {0, 1, 2}) bench.expect_right(which, which);
  hostrt::clear_failures();
}

TEST_F(SharedTableFailuresTest, ASwitchToARowThatIsThereIsOnePatchAndOneLaunch) {
  Bench bench(options);
  for (const int which : {0, 1, 2, 0, 1, 2}) bench.expect_right(which, 7);
  hostrt::reset_calls();
  EXPECT_RUN(kSwitched, bench.run(0, 7));
  EXPECT_EQ(hostrt::calls("cudaGraphLaunch"), 1u);
  EXPECT_EQ(hostrt::calls("cudaGraphExecKernelNodeSetParams"), 1u);
  for (const char* const none : {"cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
                                 "cudaMemcpyAsync", "cudaMalloc", "cudaGraphExecUpdate", "cudaGraphUpload"}) {
    EXPECT_EQ(hostrt::calls(none), 0u) << none;
  }
}

}  // namespace
}  // namespace graphcache::test
