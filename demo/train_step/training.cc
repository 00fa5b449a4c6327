#include "training.h"

#include <algorithm>
#include <type_traits>

#include "../support.h"
#include "kernels.h"

namespace demo {
namespace {

template <class... P>
void launch(void (*kernel)(P...), int threads, cudaStream_t stream, std::type_identity_t<P>... args) {
  void* arguments[] = {&args...};
  DEMO_CUDA(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid(threads), dim3(kThreads), arguments, 0, stream));
}

float* pinned(std::size_t floats) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMallocHost(&memory, floats * sizeof(float)));
  return static_cast<float*>(memory);
}

}  // namespace

Training::Training(const Shape& shape, int steps) : shape_(shape), steps_(steps), initial_(initial_parameters(shape)) {
  DEMO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  const std::vector<float> batches = make_batches(shape);
  batches_ = pinned(static_cast<std::size_t>(kBatches * batch_stride()));
  for (int i = 0; i < kBatches; ++i) {
    std::copy_n(batches.begin() + std::ptrdiff_t{i} * shape.batch_floats(), shape.batch_floats(),
                batches_ + i * batch_stride());
  }
  losses_ = pinned(static_cast<std::size_t>(steps * kPlace));
  for (int i = 0; i < steps; ++i) rates_.push_back(learning_rate(i, steps));

  batch_ = allocate(shape.batch_floats());
  for (int layer = 0; layer < kLayers; ++layer) {
    output_[layer] = allocate(shape.batch * shape.outputs(layer));
    delta_[layer] = allocate(shape.batch * shape.outputs(layer));
  }
  row_losses_ = allocate(shape.batch);
  loss_ = allocate(1);
  for (float** memory : {&parameters_, &gradient_, &mean_, &square_}) *memory = allocate(shape.all_parameters());
}

Training::~Training() {
  for (float* memory : allocations_) DEMO_CUDA(cudaFree(memory));
  DEMO_CUDA(cudaFreeHost(losses_));
  DEMO_CUDA(cudaFreeHost(batches_));
  DEMO_CUDA(cudaStreamDestroy(stream_));
}

Step Training::step(int index) const {
  return {batches_ + index % kBatches * batch_stride(), rates_[static_cast<std::size_t>(index)],
          static_cast<float>(index + 1), losses_ + index * kPlace};
}

void Training::copy_batch(cudaStream_t stream, const float* batch) const {
  DEMO_CUDA(cudaMemcpyAsync(batch_, batch, batch_bytes(), cudaMemcpyHostToDevice, stream));
}

void Training::forward_and_backward(cudaStream_t stream, int rows) const {
  for (int layer = 0; layer < kLayers; ++layer) {
    const int outputs = shape_.outputs(layer);
    launch(forward, rows * outputs, stream, input(layer), parameters_ + shape_.first_parameter(layer), output_[layer],
           rows, shape_.inputs(layer), outputs, layer != kLayers - 1);
  }
  launch(softmax_loss, rows, stream, output_[kLayers - 1], batch_ + rows * kInputs, delta_[kLayers - 1], row_losses_,
         rows, kClasses);
  launch(demo::mean, 1, stream, row_losses_, loss_, rows);
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    const int inputs = shape_.inputs(layer);
    const int outputs = shape_.outputs(layer);
    const int first = shape_.first_parameter(layer);
    launch(parameter_gradient, shape_.parameters(layer), stream, input(layer), delta_[layer], gradient_ + first, rows,
           inputs, outputs);
    if (layer == 0) break;
    launch(input_gradient, rows * inputs, stream, delta_[layer], parameters_ + first, input(layer), delta_[layer - 1],
           rows, inputs, outputs);
  }
}

void Training::optimize(cudaStream_t stream, float rate, float number) const {
  const int count = shape_.all_parameters();
  launch(adam, count, stream, parameters_, mean_, square_, gradient_, count, rate, number);
}

void Training::copy_loss(cudaStream_t stream, float* to) const {
  DEMO_CUDA(cudaMemcpyAsync(to, loss_, sizeof(float), cudaMemcpyDeviceToHost, stream));
}

void Training::enqueue(cudaStream_t stream, const float* batch, float rate, float number, float* loss) const {
  copy_batch(stream, batch);
  forward_and_backward(stream);
  optimize(stream, rate, number);
  copy_loss(stream, loss);
}

void Training::reset() const {
  const std::size_t bytes = initial_.size() * sizeof(float);
  DEMO_CUDA(cudaMemcpyAsync(parameters_, initial_.data(), bytes, cudaMemcpyHostToDevice, stream_));
  DEMO_CUDA(cudaMemsetAsync(mean_, 0, bytes, stream_));
  DEMO_CUDA(cudaMemsetAsync(square_, 0, bytes, stream_));
  DEMO_CUDA(cudaStreamSynchronize(stream_));
  std::fill(losses_, losses_ + steps_ * kPlace, 0.0f);
}

std::vector<float> Training::losses() const {
  DEMO_CUDA(cudaStreamSynchronize(stream_));
  std::vector<float> losses;
  for (int i = 0; i < steps_; ++i) losses.push_back(losses_[i * kPlace]);
  return losses;
}

std::vector<float> Training::read(const float* from) const {
  std::vector<float> values(initial_.size());
  DEMO_CUDA(cudaStreamSynchronize(stream_));
  DEMO_CUDA(cudaMemcpy(values.data(), from, values.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

float* Training::allocate(int floats) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMalloc(&memory, static_cast<std::size_t>(floats) * sizeof(float)));
  allocations_.push_back(static_cast<float*>(memory));
  return allocations_.back();
}

}  // namespace demo
