#include "times.h"

#include "../support.h"

namespace demo {

const char* to_string(Measure measure) {
  switch (measure) {
    case kCapture:
      return "capture";
    case kInstantiate:
      return "instantiate";
    case kUpload:
      return "upload";
    case kFirstLaunch:
      return "first_launch";
    case kUploadedLaunch:
      return "uploaded_launch";
    case kRepeatLaunch:
      return "repeat_launch";
    case kFirstRun:
      return "first_run";
    case kWarm:
      return "warm";
    case kFirstEndToEnd:
      return "first_end_to_end";
    case kEndToEnd:
      return "end_to_end";
    case kDevice:
      return "device";
  }
  return "";
}

void Times::time(Measure measure, const Calls& calls, const std::function<void()>& work) {
  const std::optional<std::uint64_t> before = calls();
  us_[measure].push_back(microseconds(work));
  const std::optional<std::uint64_t> after = calls();
  if (before && after) calls_[measure] = *after - *before;
}

void Times::add(Measure measure, double us) { us_[measure].push_back(us); }

Figures Times::figures() const {
  Figures figures;
  for (std::size_t i = 0; i < kMeasureCount; ++i) {
    if (!us_[i].empty()) figures[i].us = median(us_[i]);
    figures[i].calls = calls_[i];
  }
  return figures;
}

}  // namespace demo
