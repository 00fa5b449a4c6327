// Deferred execution: every order of work that streams, events and graphs allow occurs under some seed, and no other
// order.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>

#include "hostrt_support.h"
#include "in_threads.h"

namespace graphcache::test {
namespace {

void add_to(int* target, int value) { *target += value; }
GRAPHCACHE_HOST_KERNEL(add_to)

void set_to(int* target, const int* source) { *target = *source; }
GRAPHCACHE_HOST_KERNEL(set_to)

void break_down(int) { throw std::runtime_error("from a kernel"); }
GRAPHCACHE_HOST_KERNEL(break_down)

class HostrtDeferred : public HostrtLogTest {
 protected:
  void write(int value, cudaStream_t stream) { OK(HostrtLogTest::write(value, stream)); }

  void wait(cudaStream_t waiting, cudaStream_t awaited) {
    OK(cudaEventRecord(event_, awaited));
    OK(cudaStreamWaitEvent(waiting, event_, 0));
  }

  void write_by_turns() {
    for (int value = 0; value < 16; ++value) write(value, value % 2 == 0 ? stream_ : other_);
  }
};

// Every interleaving of {1, 2} and {3, 4} that keeps the order of both.
const std::set<Values> kInterleavings = {{1, 2, 3, 4}, {1, 3, 2, 4}, {1, 3, 4, 2},
                                         {3, 1, 2, 4}, {3, 1, 4, 2}, {3, 4, 1, 2}};

TEST_F(HostrtDeferred, StreamsKeepTheirOrderAndNoOther) {
  EXPECT_EQ(kInterleavings, orders([&] {
              write(1, stream_);
              write(3, other_);
              write(2, stream_);
              write(4, other_);
            }));
}

TEST_F(HostrtDeferred, EventsOrderStreams) {
  EXPECT_EQ((std::set<Values>{{1, 2, 3, 4}, {1, 3, 2, 4}, {3, 1, 2, 4}}), orders([&] {
              write(3, other_);
              write(1, stream_);
              write(2, stream_);
              wait(other_, stream_);
              write(4, other_);
            }));
}

TEST_F(HostrtDeferred, NodesRunInEveryOrderThatTheEdgesAllow) {
  EXPECT_EQ((std::set<Values>{{1, 2, 3, 4, 5}, {1, 3, 2, 4, 5}, {1, 3, 4, 2, 5}}), orders([&] {
              const cudaGraphExec_t diamond = instantiate(capture([&] {
                write(1, stream_);
                wait(other_, stream_);
                write(2, stream_);
                write(3, other_);
                write(4, other_);
                wait(stream_, other_);
                write(5, stream_);
              }));
              OK(cudaGraphLaunch(diamond, stream_));
            }));
}

TEST_F(HostrtDeferred, NodesMixWithOtherStreamsWork) {
  EXPECT_EQ(kInterleavings, orders([&] {
              OK(cudaGraphLaunch(instantiate(capture_values({1, 2})), stream_));
              write(3, other_);
              write(4, other_);
            }));
}

TEST_F(HostrtDeferred, AnExecutableRunsOnceAtATimeWithTheValuesOfItsLaunch) {
  EXPECT_EQ((std::set<Values>{{1, 2, 7, 8}}), orders([&] {
              const cudaGraph_t later = capture_values({7, 8});
              instantiate(later);
              const cudaGraphExec_t executable = instantiate(capture_values({1, 2}));
              OK(cudaGraphLaunch(executable, stream_));
              OK(update(executable, later));
              OK(cudaGraphLaunch(executable, other_));
              OK(cudaGraphExecDestroy(executable));
              OK(cudaGraphDestroy(later));
            }));
}

TEST_F(HostrtDeferred, ADisabledKernelOrdersItsNeighboursADisabledSetDoesNot) {
  unsigned char byte = 0;
  const auto disabled = [&](bool is_set) {
    return orders([&, is_set] {
      pin(byte);
      const cudaGraph_t graph = capture([&] {
        write(1, stream_);
        if (is_set) {
          OK(cudaMemsetAsync(&byte, 1, 1, stream_));
        } else {
          write(9, stream_);
        }
        write(2, stream_);
      });
      const cudaGraphExec_t executable = instantiate(graph);
      OK(cudaGraphNodeSetEnabled(executable, nodes_of(graph)[1], 0));
      OK(cudaGraphLaunch(executable, stream_));
    });
  };
  EXPECT_EQ((std::set<Values>{{1, 2}}), disabled(false));
  EXPECT_EQ((std::set<Values>{{1, 2}, {2, 1}}), disabled(true));
  EXPECT_EQ(0, byte);
}

TEST_F(HostrtDeferred, WorkReadsMemoryWhenItRuns) {
  std::set<int> read;
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    int source = 1, target = 0;
    OK(launch(set_to, 1, 1, stream_, &target, &source));
    source = 2;  // too early: nothing has waited
    OK(cudaStreamSynchronize(stream_));
    read.insert(target);
  }
  EXPECT_EQ((std::set<int>{1, 2}), read);
}

TEST_F(HostrtDeferred, NothingIsCertainlyDoneBeforeAWait) {
  std::set<int> seen;
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    int sum = 0;
    OK(launch(add_to, 1, 1, stream_, &sum, 1));
    OK(launch(add_to, 1, 1, stream_, &sum, 1));
    seen.insert(sum);
    OK(cudaStreamSynchronize(stream_));
    EXPECT_EQ(2, sum);
  }
  EXPECT_EQ((std::set<int>{0, 1, 2}), seen);
}

TEST_F(HostrtDeferred, PageableMemoryIsReadAndWrittenBeforeTheCopyReturns) {
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    int* device = nullptr;
    int* pinned = nullptr;
    OK(cudaMalloc(reinterpret_cast<void**>(&device), 2 * sizeof(int)));
    OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)));
    int value = 5, back = 0;
    OK(cudaMemcpyAsync(device, &value, sizeof value, cudaMemcpyHostToDevice, stream_));
    value = 6;
    OK(cudaMemcpyAsync(&back, device, sizeof back, cudaMemcpyDeviceToHost, stream_));
    EXPECT_EQ(5, back);
    *pinned = 7;
    OK(cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, stream_));
    OK(cudaStreamSynchronize(stream_));
    OK(cudaMemcpy(&back, device, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT_EQ(7, back);
  }
}

TEST_F(HostrtDeferred, PollingEnds) {
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    for (int value = 0; value < 8; ++value) write(value, stream_);
    OK(cudaEventRecord(event_, stream_));
    int polls = 0;
    while (cudaEventQuery(event_) == cudaErrorNotReady) ASSERT_LT(++polls, 10'000);
    EXPECT_EQ(8, count_);
    write(8, other_);
    while (cudaStreamQuery(other_) == cudaErrorNotReady) ASSERT_LT(++polls, 10'000);
    EXPECT_EQ(9, count_);
    OK(cudaPeekAtLastError());
  }
}

TEST_F(HostrtDeferred, ADestroyedStreamsWorkContinues) {
  EXPECT_EQ((std::set<Values>{{1, 2, 3}, {1, 3, 2}, {3, 1, 2}}), orders([&] {
              write(1, stream_);
              write(2, stream_);
              OK(cudaStreamDestroy(stream_));
              write(3, other_);
            }));
}

TEST_F(HostrtDeferred, AHeldStreamWaitsWhileOthersGoOn) {
  EXPECT_EQ((std::set<Values>{{3, 4, 1, 2}}), orders([&] {
              hostrt::hold(stream_);
              write(1, stream_);
              write(2, stream_);
              write(3, other_);
              write(4, other_);
              OK(cudaStreamSynchronize(other_));
              OK(hostrt::release(stream_));
            }));
  begin(1);
  hostrt::hold(stream_);
  write(1, stream_);
  wait(other_, stream_);
  write(2, other_);
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(other_));
  OK(cudaStreamSynchronize(other_));  // releases what it waits for
  EXPECT_EQ((Values{1, 2}), taken());
}

TEST_F(HostrtDeferred, TheSameSeedGivesTheSameOrder) {
  const auto program = [&] { write_by_turns(); };
  std::set<Values> all;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Values once = order(seed, program);
    EXPECT_EQ(once, order(seed, program));
    all.insert(once);
  }
  EXPECT_GT(all.size(), 15u);
}

TEST_F(HostrtDeferred, TheEnvironmentDefersAndResetRestoresThat) {
  const auto by_environment = [&] {
    hostrt::reset();
    count_ = 0;
    create_streams();
    write_by_turns();
    OK(cudaDeviceSynchronize());
  };
  const char* before = std::getenv("GRAPHCACHE_HOSTRT_SEED");
  const std::string kept = before != nullptr ? before : "";
  setenv("GRAPHCACHE_HOSTRT_SEED", "17", 1);
  by_environment();
  by_environment();
  const Values by_seed = taken();
  EXPECT_EQ(order(17, [&] { write_by_turns(); }), by_seed);
  unsetenv("GRAPHCACHE_HOSTRT_SEED");
  by_environment();
  EXPECT_EQ((Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), taken());
  if (before != nullptr) setenv("GRAPHCACHE_HOSTRT_SEED", kept.c_str(), 1);
}

TEST_F(HostrtDeferred, WorkThatFailsIsReportedByALaterCallAndEndsTheRest) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    begin(seed);
    cudaError_t error = launch(break_down, 1, 1, stream_, 1);
    EXPECT_TRUE(error == cudaSuccess || error == cudaErrorLaunchFailure);
    EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
    EXPECT_EQ(cudaErrorLaunchFailure, launch(append, 1, 1, other_, log_, &count_, 1));
    EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(other_));
    EXPECT_EQ(0, count_);
  }
}

TEST_F(HostrtDeferred, ThreadsMayShareTheWork) {
  begin(3);
  constexpr int kThreads = 4, kLaunches = 500;
  int sums[kThreads] = {};
  in_threads(kThreads, [&](int i) {
    const cudaStream_t stream = new_stream();
    for (int k = 0; k < kLaunches; ++k) OK(launch(add_to, 1, 1, stream, &sums[i], 1));
    OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(kLaunches, sums[i]);
    OK(cudaStreamDestroy(stream));
  });
  EXPECT_EQ(2u, hostrt::ledger().streams);
}

}  // namespace
}  // namespace graphcache::test
