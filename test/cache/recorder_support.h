// Shared by the suites of the recorder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

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

  Cache cache;
  DeviceBuffer<float> data{kSize};
};

}  // namespace graphcache::test
