// Measures the ways beside each other on some ranks; the top of main.cc says what is timed and what is compared.
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

// The largest differences of losses to those of one device alone.
struct LossDifference {
  double of_first = 0;  // As a part of the first step's loss,
  double of_own = 0;    // and of the loss itself, which falls to little more than nothing.
};

struct Measured {
  std::vector<Way> ways;                            // Medians.
  std::map<std::string, graphcache::Stats> caches;  // Of the ways that have one, in the end.
  LossDifference losses;
  std::uint64_t comparisons = 0;  // Of the ranks' decisions,
  std::uint64_t differing = 0;    // and those in which ranks had decided differently.
  bool equal = true;              // Whether every way left the bits of the eager run, on this rank.
};

// Every rank of the team must call it at the same time. `alone` is what one device leaves that takes whole batches.
Measured measure(Ranks& team, const Shape& shape, int steps, const graphcache::Options& options, const Trained& alone);

}  // namespace demo
