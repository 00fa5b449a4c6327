// Shared by the suites: device memory, streams and launches that clean up after themselves, and checks that read well.
// Uses only the CUDA runtime API, so that a suite runs on hostrt and on a GPU: the host never touches device memory,
// and nothing is read before a synchronization.
#pragma once

#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "forced_ways.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "launch.h"
#include "on_gpu.h"

namespace graphcache::test {

inline testing::AssertionResult cuda_ok(cudaError_t error) {
  if (error == cudaSuccess) return testing::AssertionSuccess();
  return testing::AssertionFailure() << cudaGetErrorName(error) << ": " << cudaGetErrorString(error);
}
#define CUDA_OK(call) EXPECT_TRUE(::graphcache::test::cuda_ok(call)) << #call

inline testing::AssertionResult did(Outcome wanted, const absl::StatusOr<Outcome>& outcome) {
  if (!outcome.ok()) return testing::AssertionFailure() << outcome.status().ToString();
  if (*outcome == wanted) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the run " << to_string(*outcome) << ", wanted " << to_string(wanted);
}
// EXPECT_RUN(kReplayed, cache.run(...))
#define EXPECT_RUN(outcome, ...) EXPECT_TRUE(::graphcache::test::did(::graphcache::Outcome::outcome, (__VA_ARGS__)))

inline testing::AssertionResult failed_as(absl::StatusCode code, const absl::Status& status) {
  if (status.code() == code) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "status is " << status.ToString() << ", wanted "
                                     << absl::StatusCodeToString(code);
}
inline testing::AssertionResult failed_as(absl::StatusCode code, const absl::StatusOr<Outcome>& outcome) {
  if (outcome.ok()) return testing::AssertionFailure() << "the run " << to_string(*outcome);
  return failed_as(code, outcome.status());
}
#define EXPECT_FAILURE(code, ...) EXPECT_TRUE(::graphcache::test::failed_as(absl::StatusCode::code, (__VA_ARGS__)))

inline bool mentions(const absl::Status& status, const std::string& text) {
  return status.ToString().find(text) != std::string::npos;
}

inline testing::AssertionResult mentions_all(const absl::Status& status, std::initializer_list<const char*> texts) {
  for (const char* const text : texts) {
    if (!mentions(status, text)) return testing::AssertionFailure() << status << " does not say: " << text;
  }
  return testing::AssertionSuccess();
}

// The status of a run that fails, with all of these texts.
inline testing::AssertionResult failed_with(absl::StatusCode code, const absl::Status& status,
                                            std::initializer_list<const char*> texts) {
  return status.code() == code ? mentions_all(status, texts) : failed_as(code, status);
}
inline testing::AssertionResult failed_with(absl::StatusCode code, const absl::StatusOr<Outcome>& outcome,
                                            std::initializer_list<const char*> texts) {
  return outcome.ok() ? failed_as(code, outcome) : failed_with(code, outcome.status(), texts);
}
// EXPECT_ERROR(kInvalidArgument, status, "no kernel is called", "(\"k\")")
#define EXPECT_ERROR(code, status, ...) \
  EXPECT_TRUE(::graphcache::test::failed_with(absl::StatusCode::code, status, {__VA_ARGS__}))

inline testing::AssertionResult succeeded(const absl::Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.ToString();
}
inline testing::AssertionResult succeeded(const absl::StatusOr<Outcome>& outcome) {
  return succeeded(outcome.status());
}
// Whatever the outcome.
#define EXPECT_SUCCESS(...) EXPECT_TRUE(::graphcache::test::succeeded((__VA_ARGS__)))
#define ASSERT_SUCCESS(...) ASSERT_TRUE(::graphcache::test::succeeded((__VA_ARGS__)))

// For tests without sharing: each key of a topology has its own executable.
inline Options unshared(const Options& options) { return forced(Sharing::kNever, options); }
inline Options unshared(int max_executables = Options().max_executables) {
  return forced(Sharing::kNever, max_executables);
}

// Siblings borrow executables by updates, however small their graphs are.
inline Options renting(const Options& options) { return forced(Sharing::kUpdates, options); }
inline Options renting(int max_executables = Options().max_executables) {
  return forced(Sharing::kUpdates, max_executables);
}

inline void expect_empty(const Cache& cache) {
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.live_executables, 0u);
  EXPECT_EQ(stats.live_templates, 0u);
  EXPECT_EQ(stats.families, 0u);
}

// Returns a copy of `values` on the device; waits for all work.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t size, T value = T()) : DeviceBuffer(std::vector<T>(size, value)) {}
  explicit DeviceBuffer(const std::vector<T>& values) : size_(values.size()) {
    CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)));
    write(values);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* get() const { return data_; }
  int size() const { return static_cast<int>(size_); }
  std::size_t bytes() const { return size_ * sizeof(T); }

  void write(const std::vector<T>& values) {
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
  }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  T first() const { return read().front(); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Pinned host memory, filled with `value`. A graph may copy from and to it; with pageable memory a key runs directly.
template <class T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t size, T value = T()) : size_(size) {
    CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes()));
    fill(value);
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  T* get() const { return data_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  void fill(T value) { std::fill_n(data_, size_, value); }
  std::vector<T> read() const {
    CUDA_OK(cudaDeviceSynchronize());
    return std::vector<T>(data_, data_ + size_);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Whether kernels may use memory of the host that CUDA does not know.
inline bool device_reads_all_memory() {
  int reads_all = 0;
  CUDA_OK(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, 0));
  return reads_all != 0;
}

class Stream {
 public:
  Stream() { CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

// A stream of these flags and of this priority. Its destruction has to succeed.
class StreamOf {
 public:
  StreamOf(unsigned flags, int priority) { CUDA_OK(cudaStreamCreateWithPriority(&stream_, flags, priority)); }
  ~StreamOf() { CUDA_OK(cudaStreamDestroy(stream_)); }
  StreamOf(const StreamOf&) = delete;
  StreamOf& operator=(const StreamOf&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

// The priorities that streams of the current device may have. A lower number is a greater priority.
struct Priorities {
  Priorities() { CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest)); }
  int least = 0, greatest = 0;
};

class Event {
 public:
  Event() { CUDA_OK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that is enqueued on `later` from now on runs after the present work of `earlier`. In a capture, this is a fork
// or a join.
inline void let_follow(cudaStream_t later, cudaStream_t earlier) {
  const Event event;
  CUDA_OK(cudaEventRecord(event, earlier));
  CUDA_OK(cudaStreamWaitEvent(later, event, 0));
}

inline int device_count() {
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  return count;
}

inline int current_device() {
  int device = -1;
  CUDA_OK(cudaGetDevice(&device));
  return device;
}

// Memory and a stream of device 1, for forked work. Device 0 is current before and after.
template <class T>
class OtherDevice {
 public:
  explicit OtherDevice(std::size_t size) {
    CUDA_OK(cudaSetDevice(1));
    stream_.emplace();
    joined_.emplace();
    memory_.emplace(size);
    CUDA_OK(cudaSetDevice(0));
  }

  DeviceBuffer<T>& memory() { return *memory_; }
  // Calls enqueue(stream) with device 1 current. Its work runs after the present work of `from` and before later work
  // of it.
  template <class Enqueue>
  void fork(cudaStream_t from, const Enqueue& enqueue) {
    CUDA_OK(cudaEventRecord(forked_, from));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaStreamWaitEvent(*stream_, forked_, 0));
    enqueue(*stream_);
    CUDA_OK(cudaEventRecord(*joined_, *stream_));
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamWaitEvent(from, *joined_, 0));
  }

 private:
  Event forked_;
  std::optional<Stream> stream_;
  std::optional<Event> joined_;
  std::optional<DeviceBuffer<T>> memory_;
};

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_OK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// A graph of what enqueue(stream) enqueues.
template <class Enqueue>
cudaGraph_t capture_graph(cudaStream_t stream, const Enqueue& enqueue) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue(stream);
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// Ends the capture of a stream. Returns the number of nodes of its graph, which is gone then.
inline std::size_t end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA_OK(cudaGraphDestroy(graph));
  return nodes;
}

// Launches the graph once as the program's own, and waits for it.
inline void launch_once(cudaGraph_t graph, cudaStream_t stream) {
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_OK(cudaGraphLaunch(executable, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaGraphExecDestroy(executable));
}

// Ends the capture of a stream, and launches its graph once.
inline void launch_captured(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  launch_once(graph, stream);
  CUDA_OK(cudaGraphDestroy(graph));
}

inline cudaStreamCaptureMode thread_capture_mode() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));  // reads the mode by replacing it
  cudaStreamCaptureMode again = mode;
  CUDA_OK(cudaThreadExchangeStreamCaptureMode(&again));  // restores the mode
  return mode;
}

// A stream, and the check that a test leaves it, the thread and the last-error slot unchanged (law 4).
class StreamTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
    cudaGetLastError();
  }

  Stream stream;
};

}  // namespace graphcache::test
