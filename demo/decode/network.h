// The transformer: its shape, the layout of its weights, and their values on the device and for the host reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "numbers.h"

namespace demo {

struct Shape {
  int layers;
  int width;
  int heads;
  int hidden;  // of the feed-forward part
  int vocabulary;

  int head() const { return width / heads; }
};

// A row of `inputs` weights for each output. Weight i is weight(first + i, offset, scale).
struct Tensor {
  std::uint32_t first;
  int outputs;
  int inputs;
  float offset;
  float scale;

  std::uint32_t size() const { return static_cast<std::uint32_t>(outputs) * static_cast<std::uint32_t>(inputs); }
};

struct Layer {
  Tensor attention_norm;
  Tensor qkv;  // queries, keys, values
  Tensor attention_out;
  Tensor feed_forward_norm;
  Tensor gate_up;
  Tensor down;
};

// Weights of such sizes that every part matters. A layer adds about as much as it keeps. Attention scores are neither
// equal nor concentrated on one position.
class Network {
 public:
  explicit Network(const Shape& shape);

  const Shape& shape() const { return shape_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const Tensor& embedding() const { return embedding_; }
  const Tensor& final_norm() const { return final_norm_; }
  const Tensor& unembedding() const { return unembedding_; }
  std::uint32_t weights() const { return weights_; }

 private:
  Tensor tensor(int outputs, int inputs, float offset, float scale);
  Tensor norm();
  // `deviation` is that of the outputs if that of the inputs is 1.
  Tensor matrix(int outputs, int inputs, float deviation);

  const Shape shape_;
  std::uint32_t weights_ = 0;
  Tensor embedding_;
  std::vector<Layer> layers_;
  Tensor final_norm_;
  Tensor unembedding_;
};

// The weights on the device.
class Model {
 public:
  explicit Model(const Network& network);

  const Network& network() const { return network_; }
  const Shape& shape() const { return network_.shape(); }
  const Bf16* weights(const Tensor& tensor) const { return weights_ + tensor.first; }

 private:
  void fill(const Tensor& tensor);

  const Network& network_;
  DeviceMemory memory_;
  Bf16* weights_;
};

}  // namespace demo
