// Measures the ways. main.cc describes what is timed.
#pragma once

#include <vector>

#include "../support.h"
#include "trained.h"
#include "training.h"
#include "ways.h"

namespace demo {

// Trains by launching every kernel by itself.
Trained train_eagerly(const Training& training);

// Medians of three repetitions in shuffled order, by kind. Sets `equal` to false, with a message, if a way left another
// loss or parameter than `expected`, made other CUDA calls than it counts, or captured in its second pass.
std::vector<Way> measure(const Training& training, const Trained& expected, bool* equal);

}  // namespace demo
