// Shared by the suites of the cache: sums that show which runs were made, and options.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

// The work of most tests: kernels of two blocks over a hundred numbers.
inline constexpr int kSize = 100;
inline constexpr dim3 kGrid(2), kBlock(64);

// An entry that loses its executable loses its template as well.
inline Options without_templates(int max_executables) {
  Options options = unshared(max_executables);
  options.max_templates = 0;
  return options;
}

// A run whose `fn` fails under capture fails, without a second call.
inline Options called_once() {
  Options options = unshared();
  options.on_capture_failure = OnCaptureFailure::kReturnError;
  return options;
}

// The entry of this label, or an empty one.
inline EntryInfo entry_of(const Cache& cache, const std::string& label) {
  for (const EntryInfo& entry : cache.entries()) {
    if (entry.label == label) return entry;
  }
  return {};
}

// A stream with memory of its own, for forked work.
struct Branch {
  // Calls enqueue(). Its work on the branch runs after the present work of `from` and before later work of it.
  template <class Enqueue>
  void fork(cudaStream_t from, const Enqueue& enqueue) {
    CUDA_OK(cudaEventRecord(forked, from));
    CUDA_OK(cudaStreamWaitEvent(stream, forked, 0));
    enqueue();
    CUDA_OK(cudaEventRecord(joined, stream));
    CUDA_OK(cudaStreamWaitEvent(from, joined, 0));
  }

  Stream stream;
  Event forked, joined;
  DeviceBuffer<float> data{kSize};
};

class CacheTest : public StreamTest {
 protected:
  // Adds a value to every element.
  cudaError_t add_value(cudaStream_t on, float value) {
    return launch(add, kGrid, kBlock, on, data.get(), kSize, value);
  }
  // The work of a run that run_add() makes.
  cudaError_t add_one(cudaStream_t on) { return add_value(on, 1); }
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& key) {
    return cache.run(key, stream, [&](cudaStream_t on) {
      ++calls;
      return add_one(on);
    });
  }
  // The same with a value that follows the runs.
  absl::StatusOr<Outcome> run_add(Cache& cache, cudaStream_t on, float value) {
    return cache.run(key("k"), on, params(value), [&](Recorder& rec, Slot<float> v) {
      ++calls;
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
  }
  // Lets the cache destroy what waits for launches.
  static void settle(Cache& cache) {
    CUDA_OK(cudaDeviceSynchronize());
    cache.erase(key("a key that was never run"));
  }
  void reset_sum() { data.write(std::vector<float>(kSize)); }
  void expect_sum(float sum) { EXPECT_EQ(data.read(), std::vector<float>(kSize, sum)); }

  static bool says(const std::string& text, const std::string& what) {
    if (text.find(what) != std::string::npos) return true;
    std::printf("it says:\n%s", text.c_str());
    return false;
  }

  // The labels of keys that have an executable, most recently used first.
  static std::vector<std::string> live(const Cache& cache) {
    std::vector<std::string> labels;
    for (const EntryInfo& entry : cache.entries()) {
      if (entry.live) labels.push_back(entry.label);
    }
    return labels;
  }

  DeviceBuffer<float> data{kSize};
  int calls = 0;
  Stats stats;
};

}  // namespace graphcache::test
