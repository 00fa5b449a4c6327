// The result of a training, for bitwise comparisons.
#pragma once

#include <vector>

#include "training.h"

namespace demo {

struct Trained {
  std::vector<float> losses;  // of all steps
  std::vector<float> parameters;
};

// Waits for all enqueued work.
Trained trained(const Training& training);

// Returns false, with a message that names the way, if a bit differs from the result of the eager run.
bool equals(const Trained& found, const Trained& expected, const char* way);

}  // namespace demo
