// A lane, as its world sees it. Stream 0 of a per-thread lane is the stream of its thread, because the lane is compiled
// with per-thread default streams.
#pragma once

#include <memory>

#include "graphcache/graphcache.h"
#include "world.h"

namespace graphcache::test::differential {

class AnyLane {
 public:
  virtual ~AnyLane() = default;
  virtual void work() = 0;
  virtual Tally tally() const = 0;
};

using MakeLane = std::unique_ptr<AnyLane>(World& world, Cache& cache, int number);
MakeLane make_plain_lane, make_per_thread_lane;

}  // namespace graphcache::test::differential
