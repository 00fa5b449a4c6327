// Measures the cost of two buckets taking turns on one executable.
#pragma once

#include "../support.h"
#include "loop.h"

namespace demo {

// Two buckets alternate: by hand with two kept templates and one executable, and in a cache with one executable. `loop`
// provides the nodes, the memory and the stream; its buckets and products are not used. At most `iterations` iterations
// are timed in each repetition. Returns false if a result differs from the host reference.
bool measure_switching(Loop loop, int iterations, int repetitions, Section* section);

// The blocks of the largest grid of these buckets.
inline constexpr int kSwitchBlocks = 32;

}  // namespace demo
