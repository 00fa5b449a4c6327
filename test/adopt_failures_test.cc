// Adopted graphs with failing calls and with launches in flight, and what they leave alive. On hostrt.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

// Functions by which the library restores the thread's state. If they fail, it is not restored.
bool puts_back(const std::string& function) {
  return function == "cudaGetLastError" || function == "cudaPeekAtLastError" ||
         function == "cudaThreadExchangeStreamCaptureMode";
}

class AdoptFailuresTest : public CacheTest {
 protected:
  void SetUp() override { hostrt::reset_calls(); }
  void TearDown() override {
    CacheTest::TearDown();
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  }
  // Launches of which the first adds `value` and the others add nothing.
  cudaGraph_t adding(float value, int nodes = 8, unsigned blocks = 2) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) {
      CUDA_OK(launch(add, dim3(blocks), kBlock, stream, data.get(), kSize, i == 0 ? value : 0.0f));
    }
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }
  // An owner that checks, when it is released, whether work of the stream is in flight.
  std::shared_ptr<void> owner() {
    return {&released, [this](void*) {
              ++released;
              EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << "released with a launch in flight";
            }};
  }
  void adopt(Cache& cache, const Key& of, float value, unsigned blocks = 2) {
    EXPECT_TRUE(cache.adopt(of, adding(value, 8, blocks), {.owner = owner(), .take_graph = true}).ok());
  }

  int released = 0;
};

TEST_F(AdoptFailuresTest, AnOwnerWaitsForALaunchInFlight) {
  Cache cache;
  adopt(cache, key("k"), 1);
  hostrt::hold(stream);
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 1);
  expect_sum(1);
}

// A sibling has the executable that was launched, so the key's own state does not show the launch.
TEST_F(AdoptFailuresTest, AnOwnerWaitsForTheLaunchOfAnExecutableThatASiblingHas) {
  Cache cache(renting(1));
  adopt(cache, key("a"), 1);
  adopt(cache, key("b"), 10, 5);
  EXPECT_TRUE(cache.run(key("a"), stream).ok());
  EXPECT_RUN(kSwitched, cache.run(key("b"), stream));
  EXPECT_RUN(kSwitched, cache.run(key("a"), stream));
  hostrt::hold(stream);
  EXPECT_TRUE(cache.run(key("a"), stream).ok());
  EXPECT_RUN(kSwitched, cache.run(key("b"), stream));
  EXPECT_TRUE(cache.erase(key("a")));
  EXPECT_EQ(released, 1);
  expect_sum(3 + 20);
}

// Waiting for the device allocates a byte of its memory.
TEST_F(AdoptFailuresTest, AnOwnerStaysWhereTheDeviceCannotBeWaitedFor) {
  Cache cache;
  adopt(cache, key("k"), 1);
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  hostrt::hold(stream);
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  hostrt::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation, -1);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 0);
  hostrt::clear_failures();
  EXPECT_FALSE(cache.erase(key("k")));
  EXPECT_EQ(released, 1);
  expect_sum(2);
}

// Waiting is not allowed there, so a later call of another cache of the device releases the owner.
TEST_F(AdoptFailuresTest, AnOwnerOutlivesACacheThatEndsInsideACapture) {
  std::optional<Cache> inner(std::in_place);
  adopt(*inner, key("k"), 1);
  EXPECT_TRUE(inner->run(key("k"), stream).ok());
  hostrt::hold(stream);
  EXPECT_TRUE(inner->run(key("k"), stream).ok());
  Cache outer;
  const Stream other;
  EXPECT_RUN(kInstantiated, outer.run(key("outer"), other, [&](cudaStream_t on) {
    inner.reset();
    return add_one(on);
  }));
  EXPECT_EQ(released, 0);
  outer.clear();
  EXPECT_EQ(released, 1);
  expect_sum(3);
}

// Each thread repeatedly adopts its own graph, while others destroy the results of earlier adoptions.
TEST_F(AdoptFailuresTest, AnAdoptedGraphHasNoRelativesInTheCache) {
  constexpr int kThreads = 4, kRounds = 100;
  Cache cache(renting(2));
  std::vector<cudaGraph_t> graphs;
  for (int i = 0; i < kThreads; ++i) graphs.push_back(adding(0, 4, static_cast<unsigned>(2 + i)));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Stream own;
      const Key of = key("k", i);
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(cache.adopt(of, graphs[static_cast<std::size_t>(i)]).ok());
        for (int run = 0; run < 3; ++run) EXPECT_TRUE(cache.run(of, own).ok());
        EXPECT_TRUE(cache.erase(of));
      }
      CUDA_OK(cudaGraphDestroy(graphs[static_cast<std::size_t>(i)]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
}

TEST_F(AdoptFailuresTest, ADisabledCacheKeepsNoExecutables) {
  const std::size_t before = hostrt::ledger().executables;
  Cache cache(unshared(0));
  adopt(cache, key("k"), 1);
  for (int i = 0; i < 50; ++i) EXPECT_RUN(kEager, cache.run(key("k"), stream));
  EXPECT_LE(hostrt::ledger().executables, before + 2);
  expect_sum(50);
}

// Each call fails in turn. After an error the graph is intact and still the caller's, otherwise it is the cache's.
TEST_F(AdoptFailuresTest, AnyCallOfAnAdoptionMayFail) {
  for (const bool takes : {false, true}) {
    std::map<std::string, std::uint64_t> calls;
    for (const bool counts : {true, false}) {
      if (counts) calls = {{"", 1}};
      const auto counted = calls;
      for (const auto& [function, times] : counted) {
        if (puts_back(function)) continue;
        if (function == "cudaGraphDestroy") continue;  // its failure leaves the graph behind, whatever the caller does
        for (int nth = 1; nth <= static_cast<int>(times); ++nth) {
          SCOPED_TRACE(function + ", call " + std::to_string(nth));
          data.write(std::vector<float>(kSize, 0));
          Cache cache;
          cudaGraph_t graph = adding(1, 3);
          std::size_t graphs = hostrt::ledger().graphs;
          hostrt::reset_calls();
          if (!counts) hostrt::fail_call(function.c_str(), nth, cudaErrorUnknown);
          const absl::Status done =
              cache.adopt(key("my label"), graph, params(2.0f),
                          {.owner = owner(), .take_graph = takes, .bound = {bind("graphcache::test::add", 2, 0)}});
          hostrt::clear_failures();
          if (counts) calls = hostrt::call_counts();
          CUDA_OK(cudaPeekAtLastError());
          EXPECT_EQ(hostrt::ledger().graphs, graphs + (done.ok() && !takes ? 1 : 0));
          if (done.ok()) {
            EXPECT_RUN(kRestored, cache.run(key("my label"), stream, params(4.0f), adopted));
            expect_sum(12);
          } else {
            EXPECT_TRUE(mentions(done, "my label")) << done;
            EXPECT_FALSE(cache.contains(key("my label")));
            EXPECT_TRUE(absl::IsNotFound(cache.run(key("my label"), stream, params(4.0f), adopted).status()));
            EXPECT_TRUE(cache.adopt(key("my label"), graph, {.take_graph = takes}).ok());
            EXPECT_RUN(kRestored, cache.run(key("my label"), stream));
          }
          if (!takes) {
            CUDA_OK(cudaGraphDestroy(graph));
          }
          cache.clear();
          graphs = hostrt::ledger().graphs;
          EXPECT_EQ(graphs, 0u);
        }
      }
    }
  }
}

// Each call of a run fails in turn. The run launches in another way, or returns an error and does nothing.
TEST_F(AdoptFailuresTest, AnyCallOfARunMayFail) {
  std::map<std::string, std::uint64_t> calls = {{"", 1}};
  for (const bool counts : {true, false}) {
    const auto counted = calls;
    for (const auto& [function, times] : counted) {
      if (puts_back(function)) continue;
      for (int nth = 1; nth <= static_cast<int>(times); ++nth) {
        for (const int how_often : {1, -1}) {
          SCOPED_TRACE(function + ", call " + std::to_string(nth) + (how_often == 1 ? "" : " and on"));
          data.write(std::vector<float>(kSize, 0));
          Cache cache(renting(1));
          adopt(cache, key("other"), 10, 4);
          adopt(cache, key("my label"), 1, 3);
          EXPECT_TRUE(cache.run(key("other"), stream).ok());
          hostrt::reset_calls();
          if (!counts) hostrt::fail_call(function.c_str(), nth, cudaErrorUnknown, how_often);
          const absl::Status done = cache.run(key("my label"), stream).status();
          hostrt::clear_failures();
          if (counts) calls = hostrt::call_counts();
          float sum = 10;
          sum += done.ok() ? 1 : 0;
          if (!done.ok()) {
            EXPECT_TRUE(mentions(done, "my label")) << done;
            EXPECT_EQ(cuda_error(done), cudaErrorUnknown) << done;
          }
          expect_sum(sum);
          for (int i = 0; i < 3; ++i) {
            EXPECT_TRUE(cache.run(key("my label"), stream).ok());
            EXPECT_TRUE(cache.run(key("other"), stream).ok());
          }
          expect_sum(sum + 33);
          cudaGetLastError();
        }
      }
    }
  }
}

// The same if no executable stays, so that each run makes its own.
TEST_F(AdoptFailuresTest, AnyCallOfARunWithoutRoomMayFail) {
  std::map<std::string, std::uint64_t> calls = {{"", 1}};
  for (const bool counts : {true, false}) {
    const auto counted = calls;
    for (const auto& [function, times] : counted) {
      if (puts_back(function)) continue;
      for (int nth = 1; nth <= static_cast<int>(times); ++nth) {
        for (const cudaError_t error : {cudaErrorUnknown, cudaErrorNotSupported, cudaErrorMemoryAllocation}) {
          SCOPED_TRACE(function + ", call " + std::to_string(nth) + ": " + cudaGetErrorName(error));
          data.write(std::vector<float>(kSize, 0));
          Cache cache(unshared(0));
          EXPECT_TRUE(cache
                          .adopt(key("my label"), adding(1, 3), params(2.0f),
                                 {.take_graph = true, .bound = {bind("graphcache::test::add", 2, 0)}})
                          .ok());
          hostrt::reset_calls();
          if (!counts) hostrt::fail_call(function.c_str(), nth, error, error == cudaErrorNotSupported ? -1 : 1);
          const absl::Status done = cache.run(key("my label"), stream, params(4.0f), adopted).status();
          hostrt::clear_failures();
          if (counts) calls = hostrt::call_counts();
          float sum = done.ok() ? 12 : 0;
          if (!done.ok()) {
            EXPECT_TRUE(mentions(done, "my label")) << done;
            EXPECT_EQ(cuda_error(done), error) << done;
          }
          expect_sum(sum);
          EXPECT_RUN(kEager, cache.run(key("my label"), stream, params(1.0f), adopted));
          expect_sum(sum + 3);
          cudaGetLastError();
        }
      }
    }
  }
}

TEST_F(AdoptFailuresTest, InsideAnFnItIsRefused) {
  Cache cache;
  absl::Status inside;
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    inside = cache.adopt(key("my label"), nullptr);
    return add_one(on);
  }));
  EXPECT_TRUE(absl::IsFailedPrecondition(inside)) << inside;
  EXPECT_TRUE(mentions(inside, "adopt was called inside a run's fn")) << inside;
  EXPECT_TRUE(mentions(inside, "my label")) << inside;
  expect_sum(1);
}

TEST_F(AdoptFailuresTest, AContextThatIsLostIsRemembered) {
  Cache cache;
  adopt(cache, key("before"), 1);
  const std::uint64_t number = cache.entries().front().id;
  cudaGraph_t graph = adding(1);
  hostrt::fail_call("cudaGraphClone", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.adopt(key("k"), graph)), cudaErrorIllegalAddress);
  const absl::Status later = cache.adopt(key("my label"), graph);
  EXPECT_EQ(cuda_error(later), cudaErrorIllegalAddress) << later;
  EXPECT_TRUE(mentions(later, "my label")) << later;
  EXPECT_EQ(cuda_error(cache.run(key("before"), stream).status()), cudaErrorIllegalAddress);
  EXPECT_EQ(cuda_error(cache.graph(number).status()), cudaErrorIllegalAddress);
  cudaGetLastError();
  CUDA_OK(cudaGraphDestroy(graph));
  expect_sum(0);
}

// The owner's context is lost, so nothing uses it any more.
TEST_F(AdoptFailuresTest, AnOwnerIsReleasedWhenTheContextIsLost) {
  Cache cache;
  adopt(cache, key("k"), 1);
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  hostrt::hold(stream);
  EXPECT_TRUE(cache.run(key("k"), stream).ok());
  CUDA_OK(hostrt::release(stream));
  hostrt::fail_call("cudaMalloc", 1, cudaErrorIllegalAddress, -1);
  hostrt::fail_call("cudaEventSynchronize", 1, cudaErrorIllegalAddress, -1);
  hostrt::fail_call("cudaStreamSynchronize", 1, cudaErrorIllegalAddress, -1);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_EQ(released, 1);
  hostrt::clear_failures();
  EXPECT_EQ(cuda_error(cache.run(key("other"), stream, [&](cudaStream_t on) { return add_one(on); }).status()),
            cudaErrorIllegalAddress);
  cudaGetLastError();
}

}  // namespace
}  // namespace graphcache::test
