// The network and its task, on the host: what every way trains, and the host reference too.
#pragma once

#include <vector>

namespace demo {

inline constexpr int kInputs = 32;
inline constexpr int kClasses = 10;
inline constexpr int kLayers = 3;
inline constexpr int kBatches = 16;  // That the steps take in turn.

// The parameters of the layers follow one another; kernels.h says how those of one layer lie.
struct Shape {
  int batch;
  int hidden;

  int inputs(int layer) const { return layer == 0 ? kInputs : hidden; }
  int outputs(int layer) const { return layer == kLayers - 1 ? kClasses : hidden; }
  int parameters(int layer) const { return (inputs(layer) + 1) * outputs(layer); }
  int first_parameter(int layer) const { return layer == 0 ? 0 : first_parameter(layer - 1) + parameters(layer - 1); }
  int all_parameters() const { return first_parameter(kLayers); }
  // A batch is the inputs of its examples, then their targets: 1 for the class, 0 for the others.
  int targets() const { return batch * kInputs; }
  int batch_floats() const { return batch * (kInputs + kClasses); }
};

// The same ones in every process.
std::vector<float> initial_parameters(const Shape& shape);
// All batches, one after another. Each class is points around two centres.
std::vector<float> make_batches(const Shape& shape);

// Rises over the first steps, then falls along a cosine. Steps are counted from 0.
float learning_rate(int step, int steps);

}  // namespace demo
