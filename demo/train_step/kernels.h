// The kernels of the demo. Host code takes their addresses by these declarations; nvcc's host stubs have the same
// names.
//
// Each thread computes one element and adds up in one fixed order, so that the same work leaves the same bits. Matrices
// are row by row. The parameters of a layer are inputs + 1 rows of `outputs` numbers; the last row holds the biases.
#pragma once

#include <cuda_runtime_api.h>

namespace demo {

// out = in * weights + biases, and zero where that is negative if `relu`. A thread for each element of `out`.
void forward(const float* in, const float* parameters, float* out, int rows, int inputs, int outputs, bool relu);

// For each row the cross-entropy of softmax(logits) with the targets, and in `delta` the derivative of the rows' mean
// loss by the logits. A thread for each row.
void softmax_loss(const float* logits, const float* targets, float* delta, float* losses, int rows, int classes);

// One thread.
void mean(const float* values, float* result, int count);

// The loss's derivative by a layer's parameters, from that by its output before ReLU. A thread for each parameter.
void parameter_gradient(const float* in, const float* delta, float* gradient, int rows, int inputs, int outputs);

// ... and by the output of the layer before it, before ReLU; `in` is that output behind ReLU. A thread for each
// element.
void input_gradient(const float* delta, const float* parameters, const float* in, float* in_delta, int rows, int inputs,
                    int outputs);

// Adam's step, numbered from 1. `mean` and `square` are its moving averages of the gradient and of its square. A thread
// for each parameter.
void adam(float* parameters, float* mean, float* square, const float* gradient, int count, float rate, int step);

}  // namespace demo
