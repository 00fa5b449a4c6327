// What a training leaves, for comparisons bit by bit.
#pragma once

#include <vector>

#include "training.h"

namespace demo {

struct Trained {
  std::vector<float> losses;  // Of all steps.
  std::vector<float> parameters;
};

// Once all enqueued work is done.
Trained trained(const Training& training);

// False, with a message that names the way, if a bit is another than in what the eager run has left.
bool equals(const Trained& found, const Trained& expected, const char* way);

}  // namespace demo
