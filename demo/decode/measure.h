// Serves the requests in each way, each time in its own process. main.cc describes what is measured.
#pragma once

#include <string>
#include <vector>

#include "../support.h"
#include "network.h"
#include "requests.h"
#include "ways.h"

namespace demo {

// The amount of work.
struct Plan {
  Shape shape;
  Traffic traffic;
  graphcache::Buckets buckets;
  int workers;
  int repetitions;
};

struct Measured {
  std::vector<Way> ways;
  Section of_base;  // every figure relative to the way with this name
  bool equal = true;
};

// Medians of the repetitions, by kind. `equal` is false, with a message, if a step of a way differs from the first way,
// in its token or in its logit. Call this before this process has used the runtime.
Measured measure(const Plan& plan, const std::vector<Kind>& kinds, const std::string& base);

}  // namespace demo
