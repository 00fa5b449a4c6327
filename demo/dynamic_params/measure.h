// Measures ways beside each other; the top of main.cc says what is timed.
#pragma once

#include <vector>

#include "../support.h"
#include "ways.h"

namespace demo {

inline constexpr int kBatch = 8;  // Iterations of one host timing.

struct Amount {
  int iterations;  // Of one repetition's total time,
  int batches;     // and how many timings of the host.
};

// Five repetitions in shuffled order: medians, by kind. `equal` becomes false, with a message, if a way left other
// results than the host reference, or made other CUDA calls than it counts.
std::vector<Way> measure(const Loop& loop, const std::vector<Kind>& kinds, const Amount& amount, bool* equal);

}  // namespace demo
