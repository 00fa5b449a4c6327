// A rank's share of the training: its part of each batch, and steps that take the mean gradient of all ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "../train_step/network.h"
#include "../train_step/trained.h"
#include "../train_step/training.h"
#include "collective.h"

namespace demo {

// The batch size varies and is rounded up to a bucket, which is a number of eighths of the largest batch.
inline constexpr int kBuckets = 8;

class Replica {
 public:
  // `shape` is that of the largest batch of all ranks together. Without a collective there is one rank.
  Replica(const Shape& shape, int steps, int rank, int ranks, Collective* collective);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int steps() const { return training_.steps(); }
  cudaStream_t stream() const { return training_.stream(); }
  Collective* collective() const { return collective_; }
  const Training& training() const { return training_; }

  // The rank's examples in a step, and the other inputs that change.
  int rows(int step) const { return rows_[static_cast<std::size_t>(step)]; }
  Step step(int index) const;

  // The work between the copy of the batch and the optimizer: forward, backward, and the mean over the ranks.
  void gradient(int rows) const;
  // All work of a step.
  void enqueue(const Step& step, int rows) const;

  static std::size_t batch_bytes(int rows);
  // Loss of the last step, in device memory.
  const float* loss() const { return collective_ == nullptr ? training_.loss() : mean_loss_; }

 private:
  int unit() const { return training_.shape().batch / kBuckets; }  // examples of the smallest bucket

  const Training training_;
  Collective* const collective_;
  std::vector<int> rows_;  // of all steps
  // Pinned memory with all buckets of each batch, the smallest first.
  float* batches_ = nullptr;
  float* mean_loss_ = nullptr;
};

// Trains on one device, by launching every kernel by itself.
Trained train_eagerly(const Replica& replica);

}  // namespace demo
