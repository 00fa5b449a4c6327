// Warming: what it makes, what it does not change, what it returns. On hostrt.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include "policy_work.h"

namespace graphcache::test {
namespace {

TEST_F(PolicyTest, AnyNumberOfKeysIsWarmedWithoutEvictions) {
  std::vector<Spec> strangers;
  for (std::size_t nodes = 1; nodes <= 10; ++nodes) strangers.push_back(lone(nodes));
  for (const std::vector<Spec>& keys : {strangers, family(Profile::kGrids, 10, 2)}) {
    Bench<> bench({.max_executables = 3});
    hostrt::reset_calls();
    for (const Spec& which : keys) EXPECT_SUCCESS(bench.warm(which));
    for (const Spec& which : keys) EXPECT_SUCCESS(bench.warm(which));
    EXPECT_EQ(bench.calls, 10);
    EXPECT_EQ(hostrt::kernels_run(), 0u);
    EXPECT_EQ(hostrt::calls("cudaGraphLaunch"), 0u);
    EXPECT_EQ(hostrt::calls("cudaGraphUpload"), 3u);
    const Stats stats = bench.cache.stats();
    EXPECT_EQ(stats.captures, 10u);
    EXPECT_EQ(stats.instantiations, 3u);
    EXPECT_EQ(stats.live_templates, 10u);
    EXPECT_EQ(stats.runs() + stats.evictions + stats.updates, 0u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_RUN(kReplayed, bench.go(keys[i]));
    for (const Spec& which : keys) EXPECT_SUCCESS(bench.go(which));
    EXPECT_EQ(bench.calls, 10);
    EXPECT_EQ(bench.cache.stats().hits(), 13u);
  }
}

TEST_F(PolicyTest, WarmReturnsTheErrorAndLeavesNothingHalfDone) {
  Bench<> bench;
  const Key k = key("k");
  const auto work = [&](cudaStream_t on) { return launch(mix<0>, 1, 1, on, bench.state.get(), 1); };
  const auto warm = [&](const auto& end) {
    return bench.cache.warm(k, bench.stream, [&](cudaStream_t on) {
      (void)work(on);
      return end(on);
    });
  };
  EXPECT_FAILURE(kDataLoss, warm([](cudaStream_t) { return absl::DataLossError("lost"); }));
  EXPECT_FALSE(warm([](cudaStream_t) { return cudaErrorInvalidConfiguration; }).ok());
  EXPECT_THROW((void)warm([](cudaStream_t) -> cudaError_t { throw std::runtime_error("thrown"); }), std::runtime_error);
  const absl::Status broken = warm([](cudaStream_t on) { return cudaStreamSynchronize(on); });
  EXPECT_FALSE(broken.ok());
  EXPECT_TRUE(mentions(broken, "k")) << broken;
  EXPECT_FAILURE(kInvalidArgument, bench.cache.warm(k, bench.stream, std::function<void(cudaStream_t)>()));
  CUDA_OK(cudaStreamBeginCapture(bench.stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kFailedPrecondition, bench.cache.warm(k, bench.stream, work));
  end_capture(bench.stream);

  EXPECT_FALSE(bench.cache.contains(k));
  EXPECT_EQ(hostrt::kernels_run(), 0u);
  EXPECT_FALSE(is_capturing(bench.stream));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(hostrt::ledger().graphs, 0u);
  EXPECT_SUCCESS(bench.cache.warm(k, bench.stream, work));
  EXPECT_RUN(kReplayed, bench.cache.run(k, bench.stream, work));
  EXPECT_EQ(hostrt::kernels_run(), 1u);
}

TEST_F(PolicyTest, WarmInsideARunIsRefusedAndTheRunGoesOn) {
  Bench<> bench;
  const Stream other;
  const auto nothing = [](cudaStream_t) {};
  std::vector<absl::Status> inside;
  bench.in_fn = [&] {
    inside = {bench.cache.warm(key("inner"), bench.stream, nothing), bench.cache.warm(key("inner"), other, nothing)};
  };
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  ASSERT_EQ(inside.size(), 2u);
  for (const absl::Status& status : inside) EXPECT_FAILURE(kFailedPrecondition, status);
  EXPECT_FALSE(bench.cache.contains(key("inner")));
  EXPECT_RUN(kReplayed, bench.go(lone(1)));
}

TEST_F(PolicyTest, WarmThatCannotInstantiateOrUploadKeepsTheTemplate) {
  for (const char* const call : {"cudaGraphInstantiate", "cudaGraphUpload"}) {
    Bench<> bench;
    hostrt::fail_call(call, 1, cudaErrorInvalidValue);
    const absl::Status status = bench.warm(lone(2));
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(mentions(status, call)) << status;
    EXPECT_TRUE(bench.cache.contains(lone(2).key));
    EXPECT_EQ(bench.cache.stats().live_executables, 0u);
    EXPECT_RUN(kRestored, bench.go(lone(2)));
    EXPECT_EQ(bench.calls, 1);
    EXPECT_EQ(hostrt::ledger().executables, 1u);
  }
  hostrt::clear_failures();
}

// Nothing is uploaded, so no stream is needed.
TEST_F(PolicyTest, WarmWithoutRoomMakesNoStream) {
  Bench<> bench(at_most(1));
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  hostrt::fail_call("cudaStreamCreateWithFlags", 1, cudaErrorUnknown);
  EXPECT_SUCCESS(bench.warm(lone(2)));
  hostrt::clear_failures();
  EXPECT_EQ(bench.cache.stats().live_templates, 2u);
}

TEST_F(PolicyTest, WarmOfACacheThatCapturesNothingDoesNothing) {
  Bench<> bench(at_most(0));
  EXPECT_SUCCESS(bench.warm(lone(1)));
  EXPECT_EQ(bench.calls, 0);
  EXPECT_RUN(kEager, bench.go(lone(1)));
  Bench<> wrong(at_most(-1));
  EXPECT_FAILURE(kInvalidArgument, wrong.warm(lone(1)));
}

// Keys of one class.
std::vector<Spec> class_of(int members) { return family(Profile::kGrids, members, 40); }

TEST_F(PolicyTest, WarmWhereThereIsNoRoomRecordsTheKey) {
  const std::vector<Spec> keys = class_of(6);
  Bench<> bench({.max_executables = 2});
  for (int i = 0; i < 4; ++i) EXPECT_SUCCESS(bench.go(keys[static_cast<std::size_t>(i)]));
  EXPECT_SUCCESS(bench.go(keys[0]));
  const Stats full = bench.cache.stats();
  ASSERT_GT(full.set_switches, 0u) << "the class has a table";
  std::vector<bool> live;
  for (int i = 0; i < 4; ++i) live.push_back(entry_of(bench, keys[static_cast<std::size_t>(i)]).live);

  hostrt::reset_calls();
  EXPECT_SUCCESS(bench.warm(keys[4]));
  EXPECT_EQ(hostrt::calls("cudaMemcpyAsync"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphInstantiate") + hostrt::calls("cudaGraphExecUpdate"), 0u);
  const Stats warmed = bench.cache.stats();
  EXPECT_EQ(warmed.captures, full.captures + 1);
  EXPECT_EQ(warmed.set_switches, full.set_switches);
  EXPECT_EQ(warmed.evictions, full.evictions);
  for (std::size_t i = 0; i < live.size(); ++i) EXPECT_EQ(entry_of(bench, keys[i]).live, live[i]) << i;

  EXPECT_RUN(kSwitched, bench.go(keys[4]));
  EXPECT_EQ(hostrt::calls("cudaMemcpyAsync"), 1u) << "its set";
  EXPECT_EQ(bench.cache.stats().captures, warmed.captures);
  for (const Spec& which : keys) EXPECT_SUCCESS(bench.go(which));
}

TEST_F(PolicyTest, WarmKeepsTheBytesOfTheDevice) {
  const std::vector<Spec> keys = class_of(40);
  const std::size_t bytes = 2 * estimated_device_bytes(40) + 20'000;
  Bench<> bench({.max_executables = 2, .max_device_bytes = bytes});
  for (const Spec& which : keys) EXPECT_SUCCESS(bench.go(which));
  for (const Spec& which : keys) {
    EXPECT_SUCCESS(bench.warm(which));
    EXPECT_LE(bench.cache.stats().estimated_device_bytes, bytes);
  }
}

}  // namespace
}  // namespace graphcache::test
