#include "network.h"

#include <cmath>

#include "kernels.h"

namespace demo {
namespace {

constexpr float kScoreDeviation = 1.4f;  // of queries and keys; their scores have its square

}  // namespace

Network::Network(const Shape& shape) : shape_(shape) {
  embedding_ = matrix(shape.vocabulary, shape.width, std::sqrt(static_cast<float>(shape.width)));
  for (int i = 0; i < shape.layers; ++i) {
    Layer layer;
    layer.attention_norm = norm();
    layer.qkv = matrix(3 * shape.width, shape.width, kScoreDeviation);
    layer.attention_out = matrix(shape.width, shape.width, 1.0f);
    layer.feed_forward_norm = norm();
    layer.gate_up = matrix(2 * shape.hidden, shape.width, 1.0f);
    layer.down = matrix(shape.width, shape.hidden, 1.0f);
    layers_.push_back(layer);
  }
  final_norm_ = norm();
  unembedding_ = matrix(shape.vocabulary, shape.width, 1.0f);
}

Tensor Network::tensor(int outputs, int inputs, float offset, float scale) {
  const Tensor result{weights_, outputs, inputs, offset, scale};
  weights_ += result.size();
  return result;
}

Tensor Network::norm() { return tensor(1, shape_.width, 1.0f, 0.5f); }

Tensor Network::matrix(int outputs, int inputs, float deviation) {
  return tensor(outputs, inputs, 0.0f, deviation * std::sqrt(3.0f / static_cast<float>(inputs)));
}

Model::Model(const Network& network) : network_(network), weights_(memory_.allocate<Bf16>(network.weights())) {
  fill(network.embedding());
  for (const Layer& layer : network.layers()) {
    for (const Tensor* tensor : {&layer.attention_norm, &layer.qkv, &layer.attention_out, &layer.feed_forward_norm,
                                 &layer.gate_up, &layer.down}) {
      fill(*tensor);
    }
  }
  fill(network.final_norm());
  fill(network.unembedding());
  DEMO_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

void Model::fill(const Tensor& tensor) {
  launch_over(tensor.size(), demo::fill, cudaStreamPerThread, weights_ + tensor.first, tensor.first, tensor.size(),
              tensor.offset, tensor.scale);
}

}  // namespace demo
