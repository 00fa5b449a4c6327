// The measured steps, and their samples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace demo {

// main.cc describes each.
enum Measure {
  kCapture,
  kInstantiate,
  kUpload,
  kFirstLaunch,
  kUploadedLaunch,
  kRepeatLaunch,
  kFirstRun,
  kWarm,
  kFirstEndToEnd,
  kEndToEnd,
  kDevice,
};
inline constexpr std::size_t kMeasureCount = kDevice + 1;

const char* to_string(Measure measure);

// The result for one step. Both are empty if the way has no such step.
struct Figure {
  std::optional<double> us;            // the median
  std::optional<std::uint64_t> calls;  // CUDA calls, if known
};
using Figures = std::array<Figure, kMeasureCount>;

class Times {
 public:
  using Calls = std::function<std::optional<std::uint64_t>()>;

  // Does the work and records its host time. `calls` returns the number of CUDA calls so far.
  void time(Measure measure, const Calls& calls, const std::function<void()>& work);
  void add(Measure measure, double us);

  Figures figures() const;

 private:
  std::array<std::vector<double>, kMeasureCount> us_;
  std::array<std::optional<std::uint64_t>, kMeasureCount> calls_;  // of the last sample
};

}  // namespace demo
