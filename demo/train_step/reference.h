// The host reference and its checks: the same training in double precision, written independently.
#pragma once

#include <vector>

#include "network.h"
#include "support.h"
#include "training.h"

namespace demo {

inline constexpr int kCheckedSteps = 20;

class Reference {
 public:
  explicit Reference(const Shape& shape);

  // The loss of a batch, and its derivatives by all parameters.
  double gradient(const float* batch, std::vector<double>* gradient) const;
  // One step of Adam; returns the loss before it.
  double train(const Step& step);

  std::vector<double>& parameters() { return parameters_; }

 private:
  const Shape shape_;
  std::vector<double> parameters_;
  std::vector<double> mean_;
  std::vector<double> square_;
};

// Trains the first kCheckedSteps steps on the device, eagerly, and on the host.
std::vector<Check> check_first_steps(const Training& training);

}  // namespace demo
