// Measures the ways beside each other; the top of main.cc says what is timed.
#pragma once

#include <vector>

#include "../support.h"
#include "trained.h"
#include "training.h"
#include "ways.h"

namespace demo {

// By launching everything by itself.
Trained train_eagerly(const Training& training);

// Three repetitions in shuffled order: medians, by kind. `equal` becomes false, with a message, if a way left another
// loss or parameter than `expected`, or made other CUDA calls than it counts.
std::vector<Way> measure(const Training& training, const Trained& expected, bool* equal);

}  // namespace demo
