// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
//
// Each thread computes one element and adds in one fixed order, so the same work gives the same bits. Matrices are
// row-major. The parameters of a layer are inputs + 1 rows of `outputs` numbers; the last row contains the biases.
#pragma once

#include <cuda_runtime_api.h>

namespace demo {

// out = in * weights + biases; with `relu`, negative results become zero. One thread for each element of `out`.
void forward(const float* in, const float* parameters, float* out, int rows, int inputs, int outputs, bool relu);

// Computes for each row the cross-entropy of softmax(logits) and the targets, and in `delta` the derivative of the mean
// loss by the logits. One thread for each row.
void softmax_loss(const float* logits, const float* targets, float* delta, float* losses, int rows, int classes);

// Runs in one thread.
void mean(const float* values, float* result, int count);

// The derivative of the loss by a layer's parameters, given `delta`, that by its output before ReLU. One thread for
// each parameter.
void parameter_gradient(const float* in, const float* delta, float* gradient, int rows, int inputs, int outputs);

// The derivative of the loss by the output of the preceding layer before ReLU; `in` is that output after ReLU. One
// thread for each element.
void input_gradient(const float* delta, const float* parameters, const float* in, float* in_delta, int rows, int inputs,
                    int outputs);

// Adam's step, numbered from 1. `mean` and `square` are moving averages of the gradient and of its square. One thread
// for each parameter.
void adam(float* parameters, float* mean, float* square, const float* gradient, int count, float rate, float step);

}  // namespace demo
