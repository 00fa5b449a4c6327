// What each way takes to get going, and the device memory that its graphs take.
#pragma once

#include <vector>

#include "loop.h"
#include "ways.h"

namespace demo {

// Each bucket has run once and the last one of them twice.
struct Start {
  double first_replay_ms;       // From the way's construction until the host has enqueued all of that,
  double first_replay_done_ms;  // and until the GPU is done with it.
  double taken_bytes;           // Of the device's memory, after `then` has been run, too; the driver's part included.
  bool equal;
};

// By kind, the medians of the repetitions. Each way runs in a process of its own, for a driver keeps the memory of
// graphs that are gone for the next ones; so this must be called before the process makes its first CUDA call. Nobody
// else may use the device meanwhile.
std::vector<Start> measure_starts(const Plan& plan, const std::vector<Kind>& kinds, const std::vector<Request>& then,
                                  int repetitions);

}  // namespace demo
