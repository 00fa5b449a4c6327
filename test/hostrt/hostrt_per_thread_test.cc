// A program with two kinds of translation units: stream 0 is the per-thread stream in those that are compiled with
// CUDA_API_PER_THREAD_DEFAULT_STREAM, and the legacy stream in the others.

#include "hostrt_per_thread.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

class HostrtPerThread : public HostrtLogTest {
 protected:
  // append<<<1, 1>>>(log_, &count_, value)
  cudaError_t put(const Unit& unit, int value, cudaStream_t stream = nullptr) {
    int* log = log_;
    int* count = &count_;
    void* arguments[] = {&log, &count, &value};
    return unit.launch_kernel(reinterpret_cast<const void*>(&append), 1, 1, arguments, 0, stream);
  }

  // `theirs` runs in another thread, whose per-thread stream still exists while `ours` runs.
  static void beside(const std::function<void()>& theirs, const std::function<void()>& ours) {
    std::promise<void> enqueued, over;
    std::thread other([&] {
      theirs();
      enqueued.set_value();
      over.get_future().wait();
    });
    enqueued.get_future().wait();
    ours();
    over.set_value();
    other.join();
  }

  // The number of nodes that `body` adds to a capture of the per-thread stream.
  static std::size_t captured(const std::function<void()>& body) {
    GIVES(cudaSuccess, cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    body();
    cudaGraph_t graph = nullptr;
    GIVES(cudaSuccess, cudaStreamEndCapture(cudaStreamPerThread, &graph));
    return graph != nullptr ? nodes_of(graph).size() : 0;
  }
};

TEST_F(HostrtPerThread, StreamZeroIsTheOneOfTheUnit) {
  unsigned long long own = 0, legacy = 0, found = 0;
  OK(cudaStreamGetId(cudaStreamPerThread, &own));
  OK(cudaStreamGetId(cudaStreamLegacy, &legacy));
  const auto id = [&](const Unit& unit, cudaStream_t stream) {
    GIVES(cudaSuccess, unit.get_id(stream, &found));
    return found;
  };
  EXPECT_EQ(own, id(per_thread_unit, nullptr));
  EXPECT_EQ(legacy, id(plain_unit, nullptr));
  for (const Unit* unit : {&per_thread_unit, &plain_unit}) {
    EXPECT_EQ(legacy, id(*unit, cudaStreamLegacy));
    EXPECT_EQ(own, id(*unit, cudaStreamPerThread));
  }
}

TEST_F(HostrtPerThread, LaunchesAndCopiesWorkInBothKinds) {
  for (const Unit* unit : {&per_thread_unit, &plain_unit}) {
    int* place = nullptr;
    const int written = 7;
    int read = 0;
    OK(unit->malloc_async(reinterpret_cast<void**>(&place), sizeof written, nullptr));
    OK(unit->memset_async(place, 0, sizeof written, nullptr));
    OK(unit->memcpy_async(place, &written, sizeof written, cudaMemcpyHostToDevice, nullptr));
    OK(unit->memcpy_async(&read, place, sizeof read, cudaMemcpyDeviceToHost, nullptr));
    OK(unit->synchronize(nullptr));
    EXPECT_EQ(7, read);
    OK(unit->memset(place, 0, sizeof written));
    OK(unit->memcpy(&read, place, sizeof read, cudaMemcpyDeviceToHost));
    EXPECT_EQ(0, read);
    OK(put(*unit, 3));
    OK(unit->free_async(place, nullptr));
    OK(unit->synchronize(nullptr));
    EXPECT_EQ(Values{3}, taken());
  }
}

// With every seed, a thread waits for its own work. With some, the other thread's has not run by then.
TEST_F(HostrtPerThread, StreamZeroIsNotOrderedWithOtherThreads) {
  const auto after_synchronize = [&](const Unit& unit) {
    std::set<Values> found;
    for (std::uint64_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
      hostrt::reset();
      hostrt::defer(seed);
      count_ = 0;
      beside([&] { OK(put(unit, 1)); },
             [&] {
               OK(put(unit, 2));
               OK(unit.synchronize(nullptr));
               found.insert(Values(log_, log_ + count_));
             });
    }
    return found;
  };
  EXPECT_EQ((std::set<Values>{{2}, {1, 2}, {2, 1}}), after_synchronize(per_thread_unit));
  EXPECT_EQ((std::set<Values>{{1, 2}}), after_synchronize(plain_unit));
}

TEST_F(HostrtPerThread, SynchronousCopiesWaitForTheirOwnThread) {
  for (const bool is_per_thread : {true, false}) {
    const Unit& unit = is_per_thread ? per_thread_unit : plain_unit;
    int read = -1;
    count_ = 0;
    beside(
        [&] {
          hostrt::hold(cudaStreamPerThread);
          OK(put(unit, 1, cudaStreamPerThread));
        },
        [&] {
          OK(put(unit, 2));
          OK(unit.memcpy(&read, &log_[0], sizeof read, cudaMemcpyDefault));
          EXPECT_EQ(is_per_thread ? (Values{2}) : (Values{1, 2}), taken());
        });
    EXPECT_EQ(is_per_thread ? 2 : 1, read);
  }
}

// The legacy stream would wait for the busy one.
TEST_F(HostrtPerThread, QueriesAndEventsAreOfTheOwnStream) {
  const cudaStream_t busy = new_stream(cudaStreamDefault);
  hostrt::hold(busy);
  OK(put(per_thread_unit, 9, busy));
  OK(put(per_thread_unit, 0));
  OK(per_thread_unit.event_record(event_, nullptr));
  EXPECT_EQ(cudaSuccess, cudaEventQuery(event_));
  EXPECT_EQ(cudaSuccess, per_thread_unit.query(nullptr));
  EXPECT_EQ(Values{0}, taken());
  OK(hostrt::release(busy));
  EXPECT_EQ(Values{9}, taken());

  hostrt::hold(cudaStreamPerThread);
  OK(put(per_thread_unit, 1));
  EXPECT_EQ(cudaErrorNotReady, per_thread_unit.query(nullptr));
  OK(per_thread_unit.event_record(event_, nullptr));
  OK(cudaStreamWaitEvent(stream_, event_, 0));
  OK(put(per_thread_unit, 2, stream_));
  EXPECT_EQ(Values{}, taken());
  OK(hostrt::release(cudaStreamPerThread));
  OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ((Values{1, 2}), taken());

  hostrt::hold(stream_);
  OK(put(per_thread_unit, 3, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(per_thread_unit.wait_event(nullptr, event_, 0));
  OK(put(per_thread_unit, 4));
  EXPECT_EQ(Values{}, taken());
  OK(hostrt::release(stream_));
  OK(per_thread_unit.synchronize(nullptr));
  EXPECT_EQ((Values{3, 4}), taken());
}

TEST_F(HostrtPerThread, StreamZeroCanBeCaptured) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  OK(per_thread_unit.begin_capture(nullptr, cudaStreamCaptureModeGlobal));
  OK(put(per_thread_unit, 1));
  OK(per_thread_unit.is_capturing(nullptr, &status));
  EXPECT_EQ(cudaStreamCaptureStatusActive, status);
  OK(per_thread_unit.end_capture(nullptr, &graph));
  EXPECT_EQ(Values{}, taken());
  const cudaGraphExec_t executable = instantiate(graph);
  OK(per_thread_unit.graph_upload(executable, nullptr));
  hostrt::hold(cudaStreamPerThread);
  OK(per_thread_unit.graph_launch(executable, nullptr));
  EXPECT_EQ(Values{}, taken());
  OK(per_thread_unit.synchronize(nullptr));
  EXPECT_EQ(Values{1}, taken());

  EXPECT_EQ(cudaErrorStreamCaptureUnsupported,
            per_thread_unit.begin_capture(cudaStreamLegacy, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaErrorStreamCaptureUnsupported, plain_unit.begin_capture(nullptr, cudaStreamCaptureModeGlobal));
}

TEST_F(HostrtPerThread, EveryKindOfWorkJoinsACaptureOfStreamZero) {
  int* place = nullptr;
  int value = 0;
  OK(cudaMalloc(reinterpret_cast<void**>(&place), sizeof *place));
  const auto host = [](void*) {};
  const auto by_config = [&] {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = 1;
    OK(per_thread_unit.launch_kernel_by_config(&config, reinterpret_cast<const void*>(&do_nothing), nullptr));
    EXPECT_EQ(nullptr, config.stream) << "the caller's configuration stays as it is";
  };
  const auto allocate_and_free = [&] {
    void* memory = nullptr;
    OK(per_thread_unit.malloc_async(&memory, 16, nullptr));
    OK(per_thread_unit.free_async(memory, nullptr));
  };
  EXPECT_EQ(1u, captured([&] { OK(put(per_thread_unit, 1)); }));
  EXPECT_EQ(1u, captured(by_config));
  EXPECT_EQ(1u, captured([&] { OK(per_thread_unit.launch_host_func(nullptr, host, nullptr)); }));
  EXPECT_EQ(1u, captured([&] { OK(per_thread_unit.memset_async(place, 1, sizeof *place, nullptr)); }));
  EXPECT_EQ(1u, captured([&] {
              OK(per_thread_unit.memcpy_async(place, &value, sizeof value, cudaMemcpyHostToDevice, nullptr));
            }));
  EXPECT_EQ(2u, captured(allocate_and_free));
  GIVES(cudaErrorInvalidValue,
        per_thread_unit.launch_kernel_by_config(nullptr, reinterpret_cast<const void*>(&do_nothing), nullptr));
}

// As on an H100, driver 580.
TEST_F(HostrtPerThread, SynchronousCallsBreakACaptureOfStreamZero) {
  int* place = nullptr;
  const int value = 5;
  OK(cudaMalloc(reinterpret_cast<void**>(&place), sizeof *place));
  const std::function<cudaError_t(std::size_t)> calls[] = {
      [&](std::size_t bytes) { return per_thread_unit.memcpy(place, &value, bytes, cudaMemcpyHostToDevice); },
      [&](std::size_t bytes) { return per_thread_unit.memset(place, 0, bytes); }};
  for (const auto& call : calls) {
    EXPECT_EQ(1u, captured([&] {
                OK(put(per_thread_unit, 1));
                OK(call(0));
                std::thread([&] { OK(call(sizeof value)); }).join();
              }));
    cudaGraph_t graph = nullptr;
    OK(per_thread_unit.begin_capture(nullptr, cudaStreamCaptureModeRelaxed));
    OK(put(per_thread_unit, 1));
    GIVES(cudaErrorStreamCaptureUnsupported, call(sizeof value));
    GIVES(cudaErrorStreamCaptureInvalidated, per_thread_unit.end_capture(nullptr, &graph));
  }
}

TEST_F(HostrtPerThread, FunctionsOfTheDriverHaveTheStreamOfTheUnitOrOfTheFlag) {
  // Whether stream 0 of cuLaunchKernel is the per-thread stream.
  const auto is_own = [&](const Unit& unit, unsigned long long flags) {
    const auto driver = reinterpret_cast<decltype(&cuLaunchKernel)>(unit.entry_point("cuLaunchKernel", flags));
    GIVES(cudaSuccess, cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    const CUresult result =
        driver(reinterpret_cast<CUfunction>(&do_nothing), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(cudaStreamPerThread, &graph);
    // The legacy stream would have to wait for the capture, which breaks it.
    EXPECT_EQ(ended == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, result);
    return ended == cudaSuccess;
  };
  EXPECT_TRUE(is_own(per_thread_unit, cudaEnableDefault));
  EXPECT_TRUE(is_own(per_thread_unit, cudaEnablePerThreadDefaultStream));
  EXPECT_FALSE(is_own(per_thread_unit, cudaEnableLegacyStream));
  EXPECT_FALSE(is_own(plain_unit, cudaEnableDefault));
  EXPECT_TRUE(is_own(plain_unit, cudaEnablePerThreadDefaultStream));
  EXPECT_NE(nullptr, per_thread_unit.entry_point("cuGraphAddKernelNode", cudaEnableDefault));
}

TEST_F(HostrtPerThread, CallsCountUnderTheirOrdinaryNames) {
  hostrt::reset_calls();
  OK(put(per_thread_unit, 1));
  OK(per_thread_unit.synchronize(nullptr));
  EXPECT_EQ(1u, hostrt::calls("cudaLaunchKernel"));
  EXPECT_EQ(1u, hostrt::calls("cudaStreamSynchronize"));
  EXPECT_EQ(2u, hostrt::calls());
  hostrt::fail_call("cudaLaunchKernel", 0, cudaErrorUnknown);
  GIVES(cudaErrorUnknown, put(per_thread_unit, 1));
}

TEST_F(HostrtPerThread, ReportsNameThePlaceOfTheCall) {
  const auto expect_here = [](const char* function) {
    const std::string message = hostrt::last_misuse();
    const std::string here = message.substr(0, message.find('\n', message.find("\n  here: ") + 1));
    EXPECT_NE(std::string::npos, here.find(function)) << message;
  };
  OK(cudaStreamDestroy(stream_));
  GIVES(cudaErrorInvalidResourceHandle, put(per_thread_unit, 1, stream_));
  expect_here("HostrtPerThread::put(");
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = 1;
  config.stream = stream_;
  const auto kernel = reinterpret_cast<const void*>(&do_nothing);
  GIVES(cudaErrorInvalidResourceHandle, per_thread_unit.launch_kernel_by_config(&config, kernel, nullptr));
  expect_here("::TestBody(");
  const auto call_from_work = [](void*) { (void)cudaStreamQuery(nullptr); };
  OK(per_thread_unit.launch_host_func(nullptr, call_from_work, nullptr));
  expect_here("::operator()");
}

}  // namespace
}  // namespace graphcache::test
