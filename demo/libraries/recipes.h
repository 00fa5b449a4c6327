// What the recipes share: their registration and checks, memory, and errors. C++17, because nvcc compiles some of them.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "../support.h"
#include "graphcache/graphcache.h"

namespace demo {

// How often a recipe runs each of its keys. The first run is direct (Options::capture_after), the next ones capture,
// and the others replay.
constexpr int kRuns = 10;
// How often a key is captured at most if it has graphcache::values that all change in each run.
constexpr int kCapturesOfValues = 4;

// A way to use a library. `check` runs its keys on the stream, with other values or pointers in each run, and compares
// each result.
struct Recipe {
  const char* name;
  int keys;
  std::function<bool(graphcache::Cache& cache, cudaStream_t stream)> check;
  int most_captures = 1;  // Of each key.
};

// In unspecified order, because each file adds its own.
std::vector<Recipe>& recipes();
inline bool add_recipe(const Recipe& recipe) {
  recipes().push_back(recipe);
  return true;
}

// To be called with what each run of the cache returned. Prints the error of a failed one.
bool succeeded(const absl::StatusOr<graphcache::Outcome>& outcome);

// Every library here returns 0 for success.
inline absl::Status library_status(int code, const char* call) {
  return code == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat(call, ": ", code));
}

// Numbers in device memory, owned by this object.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) {
    void* memory = nullptr;
    DEMO_CUDA(cudaMalloc(&memory, count * sizeof(T)));
    DEMO_CUDA(cudaMemset(memory, 0, count * sizeof(T)));
    DEMO_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    data_ = static_cast<T*>(memory);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { set(values.data()); }
  ~Array() { DEMO_CUDA(cudaFree(data_)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* get() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  // Waits, because a copy from pageable memory may still be running when the call returns, and non-blocking streams
  // would not wait for it.
  void set(const void* values) const {
    DEMO_CUDA(cudaMemcpy(data_, values, bytes(), cudaMemcpyHostToDevice));
    DEMO_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  }
  // Copies the numbers after the work on the stream, and waits.
  std::vector<T> on_host(cudaStream_t stream) const {
    std::vector<T> values(count_);
    DEMO_CUDA(cudaMemcpyAsync(values.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream));
    DEMO_CUDA(cudaStreamSynchronize(stream));
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

// Small whole numbers, so that sums are exact in any order.
inline std::vector<float> small_numbers(std::size_t count, unsigned seed) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    numbers[i] = static_cast<float>(seed >> 28) - 8;
  }
  return numbers;
}

}  // namespace demo

// Inside `fn`: returns the error of a library call.
#define DEMO_TRY(call) \
  if (absl::Status status = ::demo::library_status((call), #call); !status.ok()) return status
// Outside `fn`: ends the program on an error.
#define DEMO_LIBRARY(call) ::demo::check_library((call), #call)

namespace demo {
void check_library(int code, const char* call);
}  // namespace demo
