// What it costs to let two buckets share one executable that they take turns with.
#pragma once

#include "../support.h"
#include "loop.h"

namespace demo {

// Each pair of buckets alternates, by hand on two kept templates and one executable, and in a cache with one
// executable. `loop` gives the nodes, the memory and the stream; its buckets and products are not used. At most
// `iterations` iterations are timed in each repetition. False if a result is not that of the host reference.
bool measure_switching(Loop loop, int iterations, int repetitions, Section* section);

// The blocks of the largest grid of these buckets.
inline constexpr int kSwitchBlocks = 32;

}  // namespace demo
