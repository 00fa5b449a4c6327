// One way, once: its threads, their requests, and what is measured of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "measure.h"

namespace demo {

// As one process leaves it to another: bytes.
struct Figures {
  double start_ms = 0;    // Until every worker has got its first step's tokens.
  double serving_ms = 0;  // All steps of all workers, what the way does before them left out.
  double tokens = 0;      // Of answers.
  double token_p50_us = 0;
  double token_p99_us = 0;
  double host_us = 0;      // Of a step: median.
  double taken_bytes = 0;  // Of the device.
  double calls = 0;        // Of a step, where the runtime counts them.
  Counters counters;
  bool has_outcomes = false;
  std::array<std::uint64_t, graphcache::kOutcomeCount> outcomes{};
};

// `choices` is where each worker's go: one for each row but padding, step by step.
Figures serve(const Plan& plan, const Kind& kind, const std::vector<Choice*>& choices);

}  // namespace demo
