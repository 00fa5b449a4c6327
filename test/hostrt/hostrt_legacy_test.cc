// The legacy stream: its order with blocking streams in deferred execution, and what it may not do during captures.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <set>
#include <thread>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

class HostrtLegacy : public HostrtLogTest {
 protected:
  HostrtLegacy() { seeds_ = 200; }

  void create_streams() override {
    HostrtLogTest::create_streams();
    OK(cudaStreamCreate(&blocking_));
    OK(cudaStreamCreate(&second_));
  }

  void put(int value, cudaStream_t stream) { OK(write(value, stream)); }

  struct Outcome {
    cudaError_t error;
    cudaStreamCaptureStatus status;
    bool operator==(const Outcome&) const = default;
    friend void PrintTo(const Outcome& outcome, std::ostream* out) {
      *out << cudaGetErrorName(outcome.error) << ", status " << outcome.status;
    }
  };

  // The result of the call during a capture of `stream`, and the state of the capture afterwards.
  Outcome beside_capture(cudaStream_t stream, cudaStreamCaptureMode mode, const std::function<cudaError_t()>& call) {
    GIVES(cudaSuccess, cudaStreamBeginCapture(stream, mode));
    GIVES(cudaSuccess, write(1, stream));
    Outcome outcome = {call(), cudaStreamCaptureStatusNone};
    GIVES(cudaSuccess, cudaStreamIsCapturing(stream, &outcome.status));
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    return outcome;
  }

  cudaStream_t blocking_ = nullptr;
  cudaStream_t second_ = nullptr;
};

const std::set<Values> kInOrder = {{1, 2, 3}};
const std::set<Values> kAnyOrder = {{1, 2}, {2, 1}};

TEST_F(HostrtLegacy, WorkOfEveryKindIsOrderedWithBlockingStreams) {
  const std::function<cudaStream_t()> blocking_streams[] = {[&] { return second_; }, [&] { return blocking_; },
                                                            [] { return cudaStreamPerThread; }};
  for (const auto& later : blocking_streams) {
    SCOPED_TRACE(&later - blocking_streams);
    EXPECT_EQ(kInOrder, orders([&] {
                put(1, blocking_);
                put(2, nullptr);
                put(3, later());
              }));
    EXPECT_EQ(kInOrder, orders([&] {
                const cudaGraphExec_t graph = instantiate(capture_values({2}));
                put(1, blocking_);
                OK(cudaGraphLaunch(graph, cudaStreamLegacy));
                put(3, later());
              }));
    EXPECT_EQ(kInOrder, orders([&] {  // a graph that records an event is enqueued in steps
                const cudaGraphExec_t graph = instantiate(capture([&] {
                  OK(cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal));
                  put(2, stream_);
                }));
                put(1, blocking_);
                OK(cudaGraphLaunch(graph, nullptr));
                put(3, later());
              }));
    EXPECT_EQ((std::set<Values>{{1, 3}}), orders([&] {
                OK(cudaMemsetAsync(log_ + 63, 0, sizeof(int), nullptr));
                put(1, blocking_);
                OK(cudaMemcpyAsync(log_ + 62, log_ + 63, sizeof(int), cudaMemcpyDefault, nullptr));
                put(3, later());
              }));
  }
}

TEST_F(HostrtLegacy, CopiesOnItReadWhatBlockingStreamsWrote) {
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    int *device = nullptr, *copied = nullptr;
    OK(cudaMalloc(reinterpret_cast<void**>(&device), 4 * sizeof(int)));
    OK(cudaMallocHost(reinterpret_cast<void**>(&copied), sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));  // counts what was written before it
    OK(cudaDeviceSynchronize());
    OK(launch(append, 1, 1, blocking_, device + 1, device, 1));
    OK(cudaMemcpyAsync(copied, device, sizeof(int), cudaMemcpyDefault, nullptr));
    OK(launch(append, 1, 1, second_, device + 1, device, 2));
    int now = 0;
    OK(cudaMemcpy(&now, device, sizeof now, cudaMemcpyDefault));
    EXPECT_EQ(1, *copied);
    EXPECT_EQ(2, now);
  }
}

// "For transfers from pageable host memory to device memory, a stream sync is performed before the copy is initiated"
// (the runtime's manual, API synchronization behavior).
TEST_F(HostrtLegacy, ASynchronousCopyReadsPageableMemoryBehindBlockingStreams) {
  for (std::uint64_t seed = 0; seed < seeds_; ++seed) {
    begin(seed);
    int* device = nullptr;
    int value = 1, copied = 0;
    OK(cudaMalloc(reinterpret_cast<void**>(&device), sizeof(int)));
    OK(cudaLaunchHostFunc(
        blocking_, [](void* data) { *static_cast<int*>(data) = 7; }, &value));
    OK(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(&copied, device, sizeof copied, cudaMemcpyDeviceToHost));
    EXPECT_EQ(7, copied);
  }
}

TEST_F(HostrtLegacy, NonBlockingStreamsAreIndependentOfIt) {
  EXPECT_EQ(kAnyOrder, orders([&] {
              put(1, stream_);
              put(2, nullptr);
            }));
  EXPECT_EQ(kAnyOrder, orders([&] {
              const cudaGraphExec_t graph = instantiate(capture_values({1}));
              OK(cudaGraphLaunch(graph, nullptr));
              put(2, stream_);
            }));
}

TEST_F(HostrtLegacy, AnEventRecordedOnItFollowsBlockingStreams) {
  EXPECT_EQ((std::set<Values>{{1, 2}}), orders([&] {
              put(1, blocking_);
              OK(cudaEventRecord(event_, nullptr));
              OK(cudaStreamWaitEvent(stream_, event_, 0));
              put(2, stream_);
            }));
}

// "When an action is taken in the legacy stream such as a kernel launch or cudaStreamWaitEvent(), the legacy stream
// first waits on all blocking streams, the action is queued in the legacy stream, and then all blocking streams wait on
// the legacy stream" (the runtime's manual, stream synchronization behavior).
TEST_F(HostrtLegacy, AWaitForAnEventOrdersBlockingStreamsToo) {
  EXPECT_EQ(kInOrder, orders([&] {
              put(1, stream_);
              OK(cudaEventRecord(event_, stream_));
              OK(cudaStreamWaitEvent(blocking_, event_, 0));
              put(2, blocking_);
              OK(cudaEventRecord(event_, other_));  // there is nothing to wait for
              OK(cudaStreamWaitEvent(nullptr, event_, 0));
              put(3, second_);
            }));
}

TEST_F(HostrtLegacy, ADestroyedBlockingStreamIsWaitedFor) {
  EXPECT_EQ((std::set<Values>{{1, 2}}), orders([&] {
              put(1, blocking_);
              OK(cudaStreamDestroy(blocking_));
              put(2, nullptr);
            }));
}

TEST_F(HostrtLegacy, EachDeviceHasOne) {
  EXPECT_EQ(kAnyOrder, orders([&] {
              hostrt::set_device_count(2);
              put(1, blocking_);
              OK(cudaSetDevice(1));
              put(2, nullptr);
              OK(cudaDeviceSynchronize());
              OK(cudaSetDevice(0));
            }));
}

TEST_F(HostrtLegacy, BesideACaptureOfABlockingStreamEveryUseFailsAndBreaksTheCapture) {
  const cudaGraphExec_t graph = instantiate(capture_values({1}));
  int from = 1, to = 0;
  pin(to);
  void* memory = nullptr;
  const std::function<cudaError_t()> uses[] = {
      [&] { return write(1, nullptr); },
      [&] { return cudaGraphLaunch(graph, nullptr); },
      [&] { return cudaGraphUpload(graph, nullptr); },
      [&] { return cudaMemcpy(&to, &from, sizeof to, cudaMemcpyDefault); },
      [&] { return cudaMemset(&to, 0, sizeof to); },
      [&] { return cudaMemcpyAsync(&to, &from, sizeof to, cudaMemcpyDefault, nullptr); },
      [&] { return cudaMemsetAsync(&to, 0, sizeof to, nullptr); },
      [&] { return cudaLaunchHostFunc(nullptr, no_call, nullptr); },
      [&] { return cudaEventRecord(event_, nullptr); },
      [&] { return cudaStreamWaitEvent(nullptr, event_, 0); },
      [&] { return cudaMallocAsync(&memory, 64, nullptr); },
      [&] { return cudaStreamSynchronize(nullptr); },
      [&] { return cudaStreamQuery(nullptr); },
  };
  const auto on_another_thread = [](const std::function<cudaError_t()>& use) {
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = use(); }).join();
    return error;
  };
  for (const auto& use : uses) {
    SCOPED_TRACE(&use - uses);
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      const Outcome broken = {cudaErrorStreamCaptureImplicit, cudaStreamCaptureStatusInvalidated};
      for (const cudaStream_t stream : {blocking_, cudaStreamPerThread}) {
        EXPECT_EQ(broken, beside_capture(stream, mode, use));
        EXPECT_EQ(broken, beside_capture(stream, mode, [&] { return on_another_thread(use); }));
      }
      EXPECT_EQ(broken, beside_capture(stream_, mode, [&] {  // a blocking stream joins the capture
                  GIVES(cudaSuccess, cudaEventRecord(event_, stream_));
                  GIVES(cudaSuccess, cudaStreamWaitEvent(blocking_, event_, 0));
                  return use();
                }));
    }
    const Outcome fine = {cudaSuccess, cudaStreamCaptureStatusActive};
    EXPECT_EQ(cudaSuccess, cudaEventRecord(event_, other_));
    EXPECT_EQ(fine, beside_capture(stream_, cudaStreamCaptureModeRelaxed, use));
    EXPECT_EQ(fine, beside_capture(stream_, cudaStreamCaptureModeThreadLocal, [&] { return on_another_thread(use); }));
  }
  EXPECT_EQ(0u, hostrt::misuses());
}

}  // namespace
}  // namespace graphcache::test
