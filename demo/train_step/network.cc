#include "network.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <random>

namespace demo {
namespace {

constexpr int kCentres = 2 * kClasses;
constexpr float kLargestRate = 0.01f;
constexpr int kRisingSteps = 10;

}  // namespace

std::vector<float> initial_parameters(const Shape& shape) {
  std::mt19937 random(1);
  std::vector<float> parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    const int inputs = shape.inputs(layer);
    const int outputs = shape.outputs(layer);
    std::normal_distribution<float> weight(0.0f, std::sqrt(2.0f / static_cast<float>(inputs)));
    for (int i = 0; i < inputs * outputs; ++i) parameters.push_back(weight(random));
    // Not zero, so that the check of the first step includes them.
    std::normal_distribution<float> bias(0.0f, 0.1f);
    for (int i = 0; i < outputs; ++i) parameters.push_back(bias(random));
  }
  return parameters;
}

std::vector<float> make_batches(const Shape& shape) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> which(0, kCentres - 1);
  std::vector<float> centres(std::size_t{kCentres} * kInputs);
  for (float& coordinate : centres) coordinate = normal(random);
  std::vector<float> batches;
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<float> targets;
    for (int example = 0; example < shape.batch; ++example) {
      const int centre = which(random);
      for (int i = 0; i < kInputs; ++i) {
        batches.push_back(centres[static_cast<std::size_t>(centre * kInputs + i)] + normal(random));
      }
      for (int c = 0; c < kClasses; ++c) targets.push_back(c == centre % kClasses ? 1.0f : 0.0f);
    }
    batches.insert(batches.end(), targets.begin(), targets.end());
  }
  return batches;
}

float learning_rate(int step, int steps) {
  const float rise = std::min(1.0f, static_cast<float>(step + 1) / kRisingSteps);
  const float fall =
      0.5f + 0.5f * std::cos(std::numbers::pi_v<float> * static_cast<float>(step) / static_cast<float>(steps));
  return kLargestRate * rise * fall;
}

}  // namespace demo
