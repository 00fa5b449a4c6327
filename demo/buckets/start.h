// Start-up time of each way, and the device memory of its graphs.
#pragma once

#include <vector>

#include "loop.h"
#include "ways.h"

namespace demo {

// Times until each bucket has run once and the last one twice.
struct Start {
  double first_replay_ms;       // from the way's construction until the host has enqueued these runs
  double first_replay_done_ms;  // from the way's construction until the GPU is done with them
  double taken_bytes;           // device memory taken after `then` has run as well, including the driver's
  bool equal;
};

// The medians of the repetitions, by kind. Each way runs in its own process, because a driver keeps the memory of
// destroyed graphs for later ones. So call this before the process makes its first CUDA call. No other process may use
// the device meanwhile.
std::vector<Start> measure_starts(const Plan& plan, const std::vector<Kind>& kinds, const std::vector<Request>& then,
                                  int repetitions);

}  // namespace demo
