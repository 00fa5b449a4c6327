// What is measured, and the samples of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace demo {

// The top of main.cc says what each is.
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

// Of one measure. A way that has no such step has neither.
struct Figure {
  std::optional<double> us;            // The median.
  std::optional<std::uint64_t> calls;  // CUDA calls, where they are known.
};
using Figures = std::array<Figure, kMeasureCount>;

class Times {
 public:
  using Calls = std::function<std::optional<std::uint64_t>()>;

  // Does the work and keeps the host's time for it. `calls` says how many CUDA calls there were so far.
  void time(Measure measure, const Calls& calls, const std::function<void()>& work);
  void add(Measure measure, double us);

  Figures figures() const;

 private:
  std::array<std::vector<double>, kMeasureCount> us_;
  std::array<std::optional<std::uint64_t>, kMeasureCount> calls_;  // Of the last one.
};

}  // namespace demo
