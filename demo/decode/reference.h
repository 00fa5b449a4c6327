// The host reference: the same transformer in double precision, without rounding in between and without a cache,
// written for itself; and what is checked against it.
#pragma once

#include <vector>

#include "network.h"

namespace demo {

// How far something is from what it should be, and how far it may be. Passed if found <= limit.
struct Check {
  const char* name;
  double found;
  double limit;
};

// The logits of every position of a sequence, one position after another.
std::vector<double> reference_logits(const Network& network, const std::vector<int>& tokens);

// Serves some requests with a network of that shape, but of two layers, on the device and on the host.
std::vector<Check> check_steps(Shape shape);

}  // namespace demo
