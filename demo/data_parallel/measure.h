// Measures the ways on some ranks. main.cc describes what is timed and compared.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../support.h"
#include "graphcache/options.h"
#include "graphcache/stats.h"
#include "ranks.h"
#include "replica.h"

namespace demo {

// The largest differences from the losses of one device.
struct LossDifference {
  double of_first = 0;  // relative to the loss of the first step
  double of_own = 0;    // relative to the loss itself, which falls to nearly nothing
};

struct Measured {
  std::vector<Way> ways;                            // medians
  std::map<std::string, graphcache::Stats> caches;  // final counters, of the ways that have a cache
  LossDifference losses;
  std::uint64_t comparisons = 0;  // number of comparisons of the ranks' decisions
  std::uint64_t differing = 0;    // number of comparisons in which decisions differed
  bool equal = true;              // whether every way left the bits of the eager run on this rank
};

// Every rank of the team must call this at the same time. `alone` is the result of one device that takes whole batches.
Measured measure(Ranks& team, const Shape& shape, int steps, const graphcache::Options& options, const Trained& alone);

}  // namespace demo
