// A rank's share of the training: its part of each batch, and steps whose gradient is the mean over all ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "../train_step/network.h"
#include "../train_step/trained.h"
#include "../train_step/training.h"
#include "collective.h"

namespace demo {

// A step takes as many examples as there happen to be, rounded up to a bucket: a number of eighths of the largest
// batch.
inline constexpr int kBuckets = 8;

class Replica {
 public:
  // The shape is that of the largest batch, of all ranks together. Without a collective there is one rank.
  Replica(const Shape& shape, int steps, int rank, int ranks, Collective* collective);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int steps() const { return training_.steps(); }
  cudaStream_t stream() const { return training_.stream(); }
  Collective* collective() const { return collective_; }
  const Training& training() const { return training_; }

  // The rank's examples in a step, and what else changes.
  int rows(int step) const { return rows_[static_cast<std::size_t>(step)]; }
  Step step(int index) const;

  // The work between the copy of the batch and the optimizer: forward, backward, and the mean over the ranks.
  void gradient(int rows) const;
  // All of a step.
  void enqueue(const Step& step, int rows) const;

  static std::size_t batch_bytes(int rows);
  // Of the last step, on the device.
  const float* loss() const { return collective_ == nullptr ? training_.loss() : mean_loss_; }

 private:
  int unit() const { return training_.shape().batch / kBuckets; }  // Examples of the smallest bucket.

  const Training training_;
  Collective* const collective_;
  std::vector<int> rows_;     // Of all steps.
  float* batches_ = nullptr;  // In pinned memory: of each batch all buckets, the smallest first.
  float* mean_loss_ = nullptr;
};

// Trains alone, by launching everything by itself.
Trained train_eagerly(const Replica& replica);

}  // namespace demo
