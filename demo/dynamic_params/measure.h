// Measures the ways. main.cc describes what is timed.
#pragma once

#include <vector>

#include "../support.h"
#include "ways.h"

namespace demo {

inline constexpr int kBatch = 8;  // iterations of one host timing

struct Amount {
  int iterations;  // iterations for one repetition's total time
  int batches;     // number of host timings
};

// Medians of five repetitions in shuffled order, by kind. Sets `equal` to false, with a message, if a way left other
// results than the host reference, or made other CUDA calls than it counts.
std::vector<Way> measure(const Loop& loop, const std::vector<Kind>& kinds, const Amount& amount, bool* equal);

}  // namespace demo
