// The requests, and the batches that come of them: by the number of the step and a seed alone, so that every way to run
// them gets the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "graphcache/buckets.h"
#include "kernels.h"

namespace demo {

struct Range {
  int least;
  int most;
};

struct Traffic {
  int steps;
  double load;   // Requests in flight at a worker, in the mean.
  double swing;  // The part of it by which the rate of arrivals rises and falls in the course of all steps, twice.
  Range prompt;  // Tokens, evenly distributed.
  Range answer;
  int vocabulary;
};

// What one step takes in.
struct Batch {
  int rows = 0;    // Without padding. 0: nobody waits for anything.
  int bucket = 0;  // With it.
  int splits = 0;  // What the longest sequence needs (kernels.h).
  int tokens = 0;  // That are answers.
};

// One worker's requests come by a Poisson process, wait while the largest batch is full, bring their prompt token by
// token, and go when their answer is complete.
class Batcher {
 public:
  Batcher(const Traffic& traffic, const graphcache::Buckets& buckets, int worker);

  // Writes as many rows as the bucket has. No token is known here: the device keeps what it has chosen.
  Batch next(Row* rows);

 private:
  struct Sequence {
    std::vector<int> prompt;
    int length;  // Tokens that it takes in in all: the last one of the answer is not.
    int id = 0;
    int position = 0;
    std::vector<int> blocks;
  };

  void arrive();
  void admit();
  Row row_of(Sequence& sequence);
  void release(const Sequence& sequence);
  int draw(const Range& range);

  const Traffic traffic_;
  const graphcache::Buckets& buckets_;
  std::mt19937 random_;
  int step_ = 0;
  double expected_ = 0;  // Arrivals up to now, by the rate alone,
  double next_ = 0;      // and when the next request comes, in that measure.
  std::deque<Sequence> waiting_;
  std::vector<Sequence> active_;
  std::vector<int> free_ids_;
  std::vector<int> free_blocks_;
};

// How much a worker needs for the largest bucket.
inline int cache_blocks(const graphcache::Buckets& buckets) {
  return static_cast<int>(buckets.largest()) * kMostBlocks;
}

// All rows but padding, of all steps.
std::size_t count_rows(const Traffic& traffic, const graphcache::Buckets& buckets, int worker);

}  // namespace demo
