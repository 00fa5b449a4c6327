// Runs one way once: its threads, their requests, and the measurements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "measure.h"

namespace demo {

// Passed from one process to another as bytes.
struct Figures {
  double start_ms = 0;    // until every worker has its first step's tokens
  double serving_ms = 0;  // all steps of all workers, without the way's preparation
  double tokens = 0;      // of answers
  double token_p50_us = 0;
  double token_p99_us = 0;
  double host_us = 0;      // median for a step
  double taken_bytes = 0;  // device memory
  double calls = 0;        // for a step, if the runtime counts calls
  Counters counters;
  bool has_outcomes = false;
  std::array<std::uint64_t, graphcache::kOutcomeCount> outcomes{};
};

// `choices` receives each worker's choices, step by step: one for each row that is not padding.
Figures serve(const Plan& plan, const Kind& kind, const std::vector<Choice*>& choices);

}  // namespace demo
