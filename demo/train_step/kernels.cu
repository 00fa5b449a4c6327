#include <cuda_runtime.h>
#include <math.h>

#include "adam.h"

namespace demo {

__device__ int thread_number() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void forward(const float* in, const float* parameters, float* out, int rows, int inputs, int outputs,
                        bool relu) {
  const int i = thread_number();
  if (i >= rows * outputs) return;
  const int row = i / outputs;
  const int output = i % outputs;
  float sum = parameters[inputs * outputs + output];
  for (int input = 0; input < inputs; ++input) sum += in[row * inputs + input] * parameters[input * outputs + output];
  out[i] = relu && sum < 0.0f ? 0.0f : sum;
}

__global__ void softmax_loss(const float* logits, const float* targets, float* delta, float* losses, int rows,
                             int classes) {
  const int row = thread_number();
  if (row >= rows) return;
  const float* const logit = logits + row * classes;
  const float* const target = targets + row * classes;
  float largest = logit[0];
  for (int c = 1; c < classes; ++c) largest = logit[c] > largest ? logit[c] : largest;
  float sum = 0.0f;
  for (int c = 0; c < classes; ++c) sum += expf(logit[c] - largest);
  const float log_sum = logf(sum);
  float loss = 0.0f;
  for (int c = 0; c < classes; ++c) {
    const float log_probability = logit[c] - largest - log_sum;
    loss -= target[c] * log_probability;
    delta[row * classes + c] = (expf(log_probability) - target[c]) / static_cast<float>(rows);
  }
  losses[row] = loss;
}

__global__ void mean(const float* values, float* result, int count) {
  if (thread_number() != 0) return;
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += values[i];
  *result = sum / static_cast<float>(count);
}

__global__ void parameter_gradient(const float* in, const float* delta, float* gradient, int rows, int inputs,
                                   int outputs) {
  const int i = thread_number();
  if (i >= (inputs + 1) * outputs) return;
  const int input = i / outputs;
  const int output = i % outputs;
  float sum = 0.0f;
  for (int row = 0; row < rows; ++row) {
    const float factor = input < inputs ? in[row * inputs + input] : 1.0f;
    sum += factor * delta[row * outputs + output];
  }
  gradient[i] = sum;
}

__global__ void input_gradient(const float* delta, const float* parameters, const float* in, float* in_delta, int rows,
                               int inputs, int outputs) {
  const int i = thread_number();
  if (i >= rows * inputs) return;
  const int row = i / inputs;
  const int input = i % inputs;
  float sum = 0.0f;
  for (int output = 0; output < outputs; ++output) {
    sum += delta[row * outputs + output] * parameters[input * outputs + output];
  }
  in_delta[i] = in[i] > 0.0f ? sum : 0.0f;
}

__global__ void adam(float* parameters, float* mean, float* square, const float* gradient, int count, float rate,
                     float step) {
  const int i = thread_number();
  if (i >= count) return;
  const float g = gradient[i];
  mean[i] = kBeta1 * mean[i] + (1.0f - kBeta1) * g;
  square[i] = kBeta2 * square[i] + (1.0f - kBeta2) * g * g;
  const float unbiased_mean = mean[i] / (1.0f - powf(kBeta1, step));
  const float unbiased_square = square[i] / (1.0f - powf(kBeta2, step));
  parameters[i] -= rate * unbiased_mean / (sqrtf(unbiased_square) + kEpsilon);
}

}  // namespace demo
