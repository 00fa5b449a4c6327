// Shared by the suites of Options::diagnose: functions of a program whose names must be found, and runs that break.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {

// No function ends in a tail call into CUDA, which would leave no frame.

[[gnu::noinline]] inline void load_weights(float** weights) {
  if (cudaMalloc(reinterpret_cast<void**>(weights), 64) != cudaSuccess) *weights = nullptr;
}
[[gnu::noinline]] inline cudaError_t drop_weights(float* weights) {
  const cudaError_t error = cudaFree(weights);
  return error == cudaSuccess ? cudaSuccess : error;
}
[[gnu::noinline]] inline bool wait_until_done(cudaStream_t on) { return cudaStreamSynchronize(on) == cudaSuccess; }
[[gnu::noinline]] inline bool wait_for_all() { return cudaDeviceSynchronize() == cudaSuccess; }
[[gnu::noinline]] inline bool is_done(cudaEvent_t event) { return cudaEventQuery(event) == cudaSuccess; }
[[gnu::noinline]] inline bool copy_at_once(float* to, float value) {
  return cudaMemcpy(to, &value, sizeof value, cudaMemcpyHostToDevice) == cudaSuccess;
}
[[gnu::noinline]] inline bool follow(cudaStream_t on, cudaEvent_t event) {
  return cudaStreamWaitEvent(on, event, 0) == cudaSuccess;
}
[[gnu::noinline]] inline bool launch_graph(cudaGraphExec_t graph, cudaStream_t on) {
  return cudaGraphLaunch(graph, on) == cudaSuccess;
}
[[gnu::noinline]] inline cudaError_t end_capture_of(cudaStream_t on) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(on, &graph);
  return graph == nullptr ? error : cudaErrorUnknown;
}
[[gnu::noinline]] inline void add_aside(float* to, cudaStream_t on) {
  CUDA_OK(launch(add, kGrid, kBlock, on, to, kSize, 1.0f));
}
[[gnu::noinline]] inline void clear_aside(float* to, cudaStream_t on) {
  CUDA_OK(cudaMemsetAsync(to, 0, kSize * sizeof(float), on));
}
[[gnu::noinline]] inline void copy_aside(float* to, const float* from, cudaStream_t on) {
  CUDA_OK(cudaMemcpyAsync(to, from, kSize * sizeof(float), cudaMemcpyDeviceToDevice, on));
}

// Why captures cannot be diagnosed here, or empty.
inline std::string why_not_diagnosed() {
  std::string why;
  Options options;
  options.diagnose = true;
  options.listeners = {std::make_shared<Log>([&](std::string_view line) {
    if (line.find("are not diagnosed") != std::string_view::npos) why = line;
  })};
  Cache cache(options);
  const Stream stream;
  EXPECT_TRUE(cache.run(key("k"), stream, [](cudaStream_t) {}).ok());  // It looks for the component.
  return why;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
// Whether a text has all of these parts.
inline testing::AssertionResult has(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    if (!contains(text, part)) return testing::AssertionFailure() << "\"" << text << "\" lacks: " << part;
  }
  return testing::AssertionSuccess();
}

class DiagnoseTest : public CacheTest {
 protected:
  void SetUp() override {
    static const std::string& why = *new std::string(why_not_diagnosed());
    if (!why.empty()) GTEST_SKIP() << "skipped, " << why;
  }

  Options diagnosing(Options options = {}) {
    options.diagnose = true;
    options.listeners = {std::make_shared<Log>([this](std::string_view line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines.emplace_back(line);
    })};
    return options;
  }

  // The error of a run that breaks because of in_fn, between two kernels of the recorder.
  std::string error_with(const Options& options, cudaStream_t on, const std::function<void(Recorder&)>& in_fn) {
    Cache cache(options);
    data.write(std::vector<float>(kSize, 0));
    EXPECT_RUN(kEager, cache.run(key("k"), on, [&](Recorder& rec) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
      in_fn(rec);
      rec.launch(scale, {kGrid, kBlock}, data.get(), data.get(), kSize, 2.0f);
    }));
    expect_sum(6);
    return cache.entries()[0].error;
  }

  std::vector<std::string> lines;

 private:
  std::mutex mutex_;
};

}  // namespace graphcache::test
