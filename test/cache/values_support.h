// Shared by the suites of values(): memory in equally aligned parts, runs whose values change, and what a cache has
// found.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {

// Whether the run was a miss.
inline testing::AssertionResult captured(const absl::StatusOr<Outcome>& outcome) {
  return outcome.ok() && *outcome == Outcome::kInstantiated ? testing::AssertionSuccess()
                                                            : did(Outcome::kUpdated, outcome);
}
#define EXPECT_CAPTURED(...) EXPECT_TRUE(::graphcache::test::captured((__VA_ARGS__)))

class ValuesTest : public StreamTest {
 protected:
  // Elements of a part. Its size is a multiple of 256 bytes, so pointers to all parts have the same low 8 bits.
  static constexpr int kPart = 128;
  static constexpr int kParts = 64;

  ValuesTest() { reset_memory(); }
  // Element i of the memory has the value i, until a test writes there.
  void reset_memory() {
    std::vector<float> indices(static_cast<std::size_t>(memory.size()));
    std::iota(indices.begin(), indices.end(), 0.0f);
    memory.write(indices);
  }

  // The values of run i. None is 0 or 1.
  static float number(int i) { return 2 + static_cast<float>(i); }
  float* part(int i) const { return memory.get() + i * kPart; }
  float content(const float* at) const { return static_cast<float>(at - memory.get()); }

  // Whether run i of a key had this outcome, if its values change in each run and can be found.
  static testing::AssertionResult learned(int i, const absl::StatusOr<Outcome>& outcome) {
    if (i == 1 || i == 2) return captured(outcome);
    return did(i == 0 ? Outcome::kInstantiated : Outcome::kPatched, outcome);
  }

  // The same if the values cannot be found, so that each run records.
  static testing::AssertionResult recorded(int i, const absl::StatusOr<Outcome>& outcome) {
    return i == 0 ? did(Outcome::kInstantiated, outcome) : captured(outcome);
  }

  // The states of the values of the entry that was used last, such as "found derived".
  static std::string states(const Cache& cache) {
    std::string text;
    const std::vector<EntryInfo> entries = cache.entries();
    for (const ValueInfo& value : entries.at(0).values) {
      text += (text.empty() ? "" : " ") + std::string(to_string(value.state));
    }
    return text;
  }
  static std::string places(const Cache& cache, std::size_t value) {
    return cache.entries().at(0).values.at(value).places;
  }

  cudaError_t fill_data(cudaStream_t on, float v) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, v); }
  cudaError_t add_to_data(cudaStream_t on, float v) { return launch(add, kGrid, kBlock, on, data.get(), kSize, v); }
  cudaError_t scale_to_data(cudaStream_t on, const float* in, float factor = 1) {
    return launch(scale, kGrid, kBlock, on, data.get(), in, kSize, factor);
  }
  // The plainest run: fills the data.
  absl::StatusOr<Outcome> run_fill(Cache& cache, const Key& key, float v) {
    return cache.run(key, stream, values(v), [&](cudaStream_t on, float value) {
      ++calls;
      return fill_data(on, value);
    });
  }
  absl::StatusOr<Outcome> run_fill(Cache& cache, float v) { return run_fill(cache, key("k"), v); }

  // Fills the data with a + b.
  absl::StatusOr<Outcome> run_sum(Cache& cache, float a, float b) {
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) {
          CUDA_OK(fill_data(on, x));
          return add_to_data(on, y);
        });
    expect_data(a + b);
    return outcome;
  }
  // Fills the data with a + b * b, so that b is derived.
  absl::StatusOr<Outcome> run_squared(Cache& cache, float a, float b) {
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) {
          CUDA_OK(fill_data(on, x));
          return add_to_data(on, y * y);
        });
    expect_data(a + b * b);
    return outcome;
  }

  static std::vector<float> read(const float* at, int count = kSize) {
    std::vector<float> result(static_cast<std::size_t>(count));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(result.data(), at, result.size() * sizeof(float), cudaMemcpyDefault));
    return result;
  }
  // f(0), f(1) and so on, for each element of the data.
  template <class F>
  static std::vector<float> elements(const F& f) {
    std::vector<float> all(kSize);
    for (int e = 0; e < kSize; ++e) all[static_cast<std::size_t>(e)] = f(e);
    return all;
  }
  void expect_data(float v) { EXPECT_EQ(data.read(), std::vector<float>(kSize, v)); }
  // The elements from this one on, in the memory as it was made.
  void expect_copy_of(const float* at) {
    std::vector<float> wanted(kSize);
    std::iota(wanted.begin(), wanted.end(), content(at));
    EXPECT_EQ(data.read(), wanted);
  }

  DeviceBuffer<float> data{kSize}, memory{kParts * kPart};
  int calls = 0;
};

}  // namespace graphcache::test
