// Shared by the suites of the recorder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "cache_support.h"

namespace graphcache::test {

inline std::uint32_t bits(float value) {
  std::uint32_t result = 0;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

inline float from_bits(std::uint32_t bits) {
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

class RecorderTest : public StreamTest {
 protected:
  // The expected outcome: the first run captures, a later one patches if its values have changed.
  static Outcome expected(int run, bool changed) {
    return run == 0 ? Outcome::kInstantiated : changed ? Outcome::kPatched : Outcome::kReplayed;
  }

  // Whether the run was made by a graph.
  static testing::AssertionResult by_graph(const absl::StatusOr<Outcome>& outcome) {
    if (outcome.ok() && *outcome == Outcome::kEager) return testing::AssertionFailure() << "the run was direct";
    return succeeded(outcome);
  }
  // Whether run number `run` of the key "k" had the expected outcome.
  template <class Values, class Fn>
  testing::AssertionResult ran(int run, bool changed, const Values& values, const Fn& fn) {
    return did(expected(run, changed), cache.run(key("k"), stream, values, fn)) << " (run " << run << ")";
  }

  Cache cache;
  DeviceBuffer<float> data{kSize};
};

}  // namespace graphcache::test
