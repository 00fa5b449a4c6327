// A worker: its stream, its memory, its key-value cache, and the work of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels.h"
#include "memory.h"
#include "network.h"
#include "products.h"
#include "requests.h"

namespace demo {

// What changes from step to step.
struct Step {
  int bucket;       // selects the graph
  int splits;       // the grid of `attend`
  const Row* rows;  // in pinned memory
  Choice* choices;  // in pinned memory
};

class Worker {
 public:
  // The host is one step ahead of the device, so it alternates between two places for what it writes and reads.
  static constexpr int kPlaces = 2;

  Worker(const Model& model, const graphcache::Buckets& buckets);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Shape& shape() const { return model_.shape(); }
  cudaStream_t stream() const { return stream_.get(); }
  Row* rows(int place) const { return rows_in_.get() + size(place) * place_rows_; }
  Choice* choices(int place) const { return choices_out_.get() + size(place) * place_rows_; }

  // Some step of the bucket, to be captured before the first real one.
  Step any_step(int bucket) const { return {bucket, 1, rows(0), choices(0)}; }

  // The parts of a step, in this order. `attend` is called where a layer's attention is to be enqueued.
  void copy_rows(const Step& step) const;
  void forward(const Step& step, const std::function<void(int layer)>& attend) const;
  void copy_choices(const Step& step) const;
  // All parts of a step.
  void enqueue(const Step& step) const;

  void attend(const Step& step, int layer) const;
  Attention attention(int layer) const;
  dim3 attention_grid(const Step& step) const;
  static dim3 attention_block() { return threads(64); }

  // Device memory that the copies use.
  Row* device_rows() const { return rows_; }
  std::size_t rows_bytes(int bucket) const { return size(bucket) * sizeof(Row); }
  const Choice* device_choices() const { return choices_; }
  std::size_t choices_bytes(int bucket) const { return size(bucket) * sizeof(Choice); }
  const float* logits() const { return logits_; }

 private:
  // Runs a step of padding in each bucket, so that no way pays for loading kernels or for cuBLAS's heuristics.
  void warm_up(const graphcache::Buckets& buckets) const;

  const Model& model_;
  const std::size_t most_;           // rows
  const std::size_t place_rows_;     // rows from one place to the next
  const std::size_t layer_numbers_;  // keys or values
  Stream stream_;
  Pinned<Row> rows_in_;
  Pinned<Choice> choices_out_;
  DeviceMemory memory_;
  Row* rows_;
  Choice* choices_;
  int* chosen_;  // by sequence
  Bf16* keys_;
  Bf16* values_;
  Bf16* hidden_;  // the residual stream, which the layers add to
  Bf16* normed_;
  Bf16* qkv_;
  float* parts_;
  Bf16* attended_;
  Bf16* gate_up_;
  Bf16* gated_;
  float* logits_;
  Products products_;
};

}  // namespace demo
