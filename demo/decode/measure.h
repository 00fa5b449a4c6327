// Serves the requests in each way, each time in a process of its own; the top of main.cc says what is measured.
#pragma once

#include <string>
#include <vector>

#include "../support.h"
#include "network.h"
#include "requests.h"
#include "ways.h"

namespace demo {

// What there is to do.
struct Plan {
  Shape shape;
  Traffic traffic;
  graphcache::Buckets buckets;
  int workers;
  int repetitions;
};

struct Measured {
  std::vector<Way> ways;
  Section of_base;  // Every figure as a part of that of the way called so.
  bool equal = true;
};

// Medians of the repetitions, by kind. `equal` is false, with a message, if a step of a way chose another token than in
// the first way, or the same one by another logit. To be called before this process has used the runtime.
Measured measure(const Plan& plan, const std::vector<Kind>& kinds, const std::string& base);

}  // namespace demo
