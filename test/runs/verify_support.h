// Shared by the suites of verify mode.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

inline Options verifying(OnStale on_stale = OnStale::kReport, int every = 1) {
  Options options;
  options.verify_every = every;
  options.on_stale = on_stale;
  return options;
}

// The findings of all entries.
inline std::string findings(const Cache& cache) {
  std::string text;
  for (const EntryInfo& entry : cache.entries()) {
    for (const Counted& finding : entry.stale) text += finding.text;
  }
  return text;
}

// Work whose results show whether a hit was right.
class VerifyTest : public StreamTest {
 protected:
  cudaError_t fill_data(cudaStream_t on, float value) {
    return launch(fill, kGrid, kBlock, on, data.get(), kSize, value);
  }
  cudaError_t add_to_data(cudaStream_t on, float value) {
    return launch(add, kGrid, kBlock, on, data.get(), kSize, value);
  }

  DeviceBuffer<float> data{kSize}, other{kSize};
};

inline testing::AssertionResult holds_all(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) {
      return testing::AssertionFailure() << "'" << word << "' is missing in '" << text << "'";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace graphcache::test
