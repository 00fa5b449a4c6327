// The requests and the batches made of them. They depend only on the step number and a seed, so every way gets the
// same.
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
  double load;  // mean number of active requests of a worker
  // Relative amplitude of the arrival rate, which rises and falls twice during all steps.
  double swing;
  Range prompt;  // tokens, uniformly distributed
  Range answer;
  int vocabulary;
};

// The input of one step.
struct Batch {
  int rows = 0;    // without padding; 0 if there is no request
  int bucket = 0;  // with padding
  int splits = 0;  // splits that the longest sequence needs (kernels.h)
  int tokens = 0;  // tokens that belong to answers
};

// One worker's requests. They arrive by a Poisson process, wait while the largest batch is full, feed their prompt
// token by token, and end when their answer is complete.
class Batcher {
 public:
  Batcher(const Traffic& traffic, const graphcache::Buckets& buckets, int worker);

  // Writes as many rows as the bucket has. The rows contain no chosen tokens, because the device keeps those.
  Batch next(Row* rows);

 private:
  struct Sequence {
    std::vector<int> prompt;
    // Number of tokens that it feeds in all. The last token of the answer is not fed.
    int length;
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
  double expected_ = 0;  // expected number of arrivals so far
  double next_ = 0;      // the value of `expected_` at which the next request arrives
  std::deque<Sequence> waiting_;
  std::vector<Sequence> active_;
  std::vector<int> free_ids_;
  std::vector<int> free_blocks_;
};

// Number of blocks that a worker needs for the largest bucket.
inline int cache_blocks(const graphcache::Buckets& buckets) {
  return static_cast<int>(buckets.largest()) * kMostBlocks;
}

// Number of rows of all steps, without padding.
std::size_t count_rows(const Traffic& traffic, const graphcache::Buckets& buckets, int worker);

}  // namespace demo
