// The training on the device: its memory and its stream, and the work of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "network.h"

namespace demo {

inline constexpr int kThreads = 128;  // Of a block.

// A block for each kThreads of them, the last one perhaps not full.
inline dim3 grid(int threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

// What changes from step to step.
struct Step {
  const float* batch;  // In pinned memory,
  float rate;
  int number;   // from 1 on,
  float* loss;  // also in pinned memory: another place for each step, since the host does not wait for it.
};

class Training {
 public:
  Training(const Shape& shape, int steps);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  const Shape& shape() const { return shape_; }
  int steps() const { return steps_; }
  cudaStream_t stream() const { return stream_; }
  Step step(int index) const;

  // The work of a step, in this order;
  void copy_batch(const float* batch) const;
  void forward_and_backward(cudaStream_t stream,
                            int rows) const;  // of a batch of so many examples, at most the shape's
  void forward_and_backward(cudaStream_t stream) const { forward_and_backward(stream, shape_.batch); }
  void optimize(float rate, int number) const;
  void copy_loss(float* to) const;
  // and all of it.
  void enqueue(const Step& step) const;

  // Memory on the device that the copies and the optimizer work on.
  float* batch() const { return batch_; }
  std::size_t batch_bytes() const { return static_cast<std::size_t>(shape_.batch_floats()) * sizeof(float); }
  float* parameters() const { return parameters_; }
  float* mean() const { return mean_; }
  float* square() const { return square_; }
  float* gradient() const { return gradient_; }
  const float* loss() const { return loss_; }

  // Brings everything to where it was before the first step, and waits until it is.
  void reset() const;
  // Copies of what is on the device, or of the losses of all steps, once all enqueued work is done.
  std::vector<float> final_parameters() const { return read(parameters_); }
  std::vector<float> final_gradient() const { return read(gradient_); }
  std::vector<float> losses() const;

 private:
  float* allocate(int floats);
  std::vector<float> read(const float* from) const;  // As many as there are parameters.
  const float* input(int layer) const { return layer == 0 ? batch_ : output_[layer - 1]; }

  const Shape shape_;
  const int steps_;
  const std::vector<float> initial_;
  std::vector<float> rates_;  // Of all steps: a schedule is none of what is timed.
  cudaStream_t stream_ = nullptr;
  std::vector<float*> allocations_;
  float* batches_ = nullptr;  // In pinned memory, like the losses.
  float* losses_ = nullptr;
  float* batch_;
  float* output_[kLayers];  // The last layer's are the logits.
  float* delta_[kLayers];   // The loss's derivatives by the outputs before ReLU.
  float* row_losses_;
  float* loss_;
  float* parameters_;
  float* gradient_;
  float* mean_;
  float* square_;
};

}  // namespace demo
