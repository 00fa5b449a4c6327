// The network and its task on the host, for every way and for the host reference.
#pragma once

#include <vector>

namespace demo {

inline constexpr int kInputs = 32;
inline constexpr int kClasses = 10;
inline constexpr int kLayers = 3;
inline constexpr int kBatches = 16;  // number of batches that the steps use in turn

// The parameters of all layers, one layer after another. kernels.h describes the layout of a layer.
struct Shape {
  int batch;
  int hidden;

  int inputs(int layer) const { return layer == 0 ? kInputs : hidden; }
  int outputs(int layer) const { return layer == kLayers - 1 ? kClasses : hidden; }
  int parameters(int layer) const { return (inputs(layer) + 1) * outputs(layer); }
  int first_parameter(int layer) const { return layer == 0 ? 0 : first_parameter(layer - 1) + parameters(layer - 1); }
  int all_parameters() const { return first_parameter(kLayers); }
  // A batch is the inputs of its examples, followed by their targets: 1 for the class, 0 for the others.
  int targets() const { return batch * kInputs; }
  int batch_floats() const { return batch * (kInputs + kClasses); }
};

// The same in every process.
std::vector<float> initial_parameters(const Shape& shape);
// All batches, one after another. Each class is a set of points around two centres.
std::vector<float> make_batches(const Shape& shape);

// Rises during the first steps, then falls along a cosine. Steps are counted from 0.
float learning_rate(int step, int steps);

}  // namespace demo
