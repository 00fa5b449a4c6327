// The training on the device: its memory, its stream, and the work of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "network.h"

namespace demo {

inline constexpr int kThreads = 128;  // threads of a block

// As many blocks as `threads` need; the last one may be partly empty.
inline dim3 grid(int threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

// Batches and losses begin at multiples of this many floats, 256 bytes, because pointers with other low 8 bits are
// other entries of a key with values().
inline constexpr std::ptrdiff_t kPlace = 64;

// What changes from step to step.
struct Step {
  const float* batch;  // in pinned memory
  float rate;
  float number;  // counted from 1; a float, because graphcache::values() takes no integers
  // In pinned memory. Another place for each step, because the host does not wait.
  float* loss;
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

  // The parts of a step, in this order. A batch has `rows` examples, at most those of the shape.
  void copy_batch(cudaStream_t stream, const float* batch) const;
  void forward_and_backward(cudaStream_t stream, int rows) const;
  void forward_and_backward(cudaStream_t stream) const { forward_and_backward(stream, shape_.batch); }
  void optimize(cudaStream_t stream, float rate, float number) const;
  void optimize(float rate, float number) const { optimize(stream_, rate, number); }
  void copy_loss(cudaStream_t stream, float* to) const;
  // All parts of a step.
  void enqueue(cudaStream_t stream, const float* batch, float rate, float number, float* loss) const;
  void enqueue(const Step& step) const { enqueue(stream_, step.batch, step.rate, step.number, step.loss); }

  // Device memory that the copies and the optimizer use.
  float* batch() const { return batch_; }
  std::size_t batch_bytes() const { return static_cast<std::size_t>(shape_.batch_floats()) * sizeof(float); }
  float* parameters() const { return parameters_; }
  float* mean() const { return mean_; }
  float* square() const { return square_; }
  float* gradient() const { return gradient_; }
  const float* loss() const { return loss_; }

  // Restores the state before the first step, and waits for that.
  void reset() const;
  // Copies of device memory, or of the losses of all steps, after all enqueued work.
  std::vector<float> final_parameters() const { return read(parameters_); }
  std::vector<float> final_gradient() const { return read(gradient_); }
  std::vector<float> losses() const;

 private:
  float* allocate(int floats);
  std::vector<float> read(const float* from) const;  // as many numbers as there are parameters
  // Floats from one batch to the next.
  std::ptrdiff_t batch_stride() const { return (shape_.batch_floats() + kPlace - 1) / kPlace * kPlace; }
  const float* input(int layer) const { return layer == 0 ? batch_ : output_[layer - 1]; }

  const Shape shape_;
  const int steps_;
  const std::vector<float> initial_;
  std::vector<float> rates_;  // of all steps, because the schedule is not part of the measurement
  cudaStream_t stream_ = nullptr;
  std::vector<float*> allocations_;
  float* batches_ = nullptr;  // in pinned memory, like the losses
  float* losses_ = nullptr;
  float* batch_;
  float* output_[kLayers];  // those of the last layer are the logits
  float* delta_[kLayers];   // derivatives of the loss by the outputs before ReLU
  float* row_losses_;
  float* loss_;
  float* parameters_;
  float* gradient_;
  float* mean_;
  float* square_;
};

}  // namespace demo
