#include "reference.h"

#include <algorithm>
#include <cmath>

#include "adam.h"

namespace demo {
namespace {

constexpr int kProbes = 8;  // parameters of each layer whose derivatives are checked by finite differences

// std::max, but NaN counts as the largest value.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

// The largest difference between two gradients, relative to the largest derivative of the layer.
template <class T>
double worst(const Shape& shape, const std::vector<T>& found, const std::vector<double>& reference) {
  double result = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    double largest = 0;
    double difference = 0;
    for (int i = 0; i < shape.parameters(layer); ++i) {
      const auto at = static_cast<std::size_t>(shape.first_parameter(layer) + i);
      largest = std::max(largest, std::abs(reference[at]));
      difference = larger(difference, std::abs(static_cast<double>(found[at]) - reference[at]));
    }
    result = larger(result, difference / largest);
  }
  return result;
}

// The reference's gradient, with central differences for some parameters of each layer, the last one a bias.
std::vector<double> probed(const Shape& shape, const float* batch, std::vector<double> gradient) {
  constexpr double kDistance = 1e-6;
  Reference at(shape);
  std::vector<double> unused;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int probe = 1; probe <= kProbes; ++probe) {
      const int last = shape.parameters(layer) - 1;
      const auto i = static_cast<std::size_t>(shape.first_parameter(layer) + last * probe / kProbes);
      const double here = at.parameters()[i];
      at.parameters()[i] = here + kDistance;
      const double above = at.gradient(batch, &unused);
      at.parameters()[i] = here - kDistance;
      const double below = at.gradient(batch, &unused);
      at.parameters()[i] = here;
      gradient[i] = (above - below) / (2 * kDistance);
    }
  }
  return gradient;
}

template <class A, class B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

Reference::Reference(const Shape& shape) : shape_(shape) {
  const std::vector<float> initial = initial_parameters(shape);
  parameters_.assign(initial.begin(), initial.end());
  mean_.resize(initial.size());
  square_.resize(initial.size());
}

double Reference::gradient(const float* batch, std::vector<double>* gradient) const {
  gradient->assign(parameters_.size(), 0.0);
  double loss = 0;
  for (int example = 0; example < shape_.batch; ++example) {
    std::vector<double> values[kLayers + 1];  // inputs of each layer, and the logits at the end
    values[0].assign(batch + example * kInputs, batch + (example + 1) * kInputs);
    for (int layer = 0; layer < kLayers; ++layer) {
      const double* weights = parameters_.data() + shape_.first_parameter(layer);
      const int inputs = shape_.inputs(layer);
      const int outputs = shape_.outputs(layer);
      std::vector<double>& out = values[layer + 1];
      out.assign(weights + inputs * outputs, weights + (inputs + 1) * outputs);
      for (int i = 0; i < inputs; ++i) {
        for (int o = 0; o < outputs; ++o) {
          out[static_cast<std::size_t>(o)] += values[layer][static_cast<std::size_t>(i)] * weights[i * outputs + o];
        }
      }
      if (layer == kLayers - 1) break;
      for (double& value : out) value = std::max(value, 0.0);
    }

    const float* target = batch + shape_.targets() + example * kClasses;
    const std::vector<double>& logits = values[kLayers];
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - largest);
    std::vector<double> delta;  // derivatives by the layer's outputs
    for (int c = 0; c < kClasses; ++c) {
      const double log_probability = logits[static_cast<std::size_t>(c)] - largest - std::log(sum);
      loss -= target[c] * log_probability / shape_.batch;
      delta.push_back((std::exp(log_probability) - target[c]) / shape_.batch);
    }

    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const auto first = static_cast<std::size_t>(shape_.first_parameter(layer));
      const auto inputs = static_cast<std::size_t>(shape_.inputs(layer));
      const std::size_t outputs = delta.size();
      std::vector<double> before(inputs);
      for (std::size_t i = 0; i <= inputs; ++i) {
        const double value = i < inputs ? values[layer][i] : 1.0;
        for (std::size_t o = 0; o < outputs; ++o) {
          const std::size_t at = first + i * outputs + o;
          (*gradient)[at] += value * delta[o];
          if (i < inputs && value > 0) before[i] += parameters_[at] * delta[o];
        }
      }
      delta = before;
    }
  }
  return loss;
}

double Reference::train(const Step& step) {
  std::vector<double> g;
  const double loss = gradient(step.batch, &g);
  const double beta1 = static_cast<double>(kBeta1);
  const double beta2 = static_cast<double>(kBeta2);
  for (std::size_t i = 0; i < g.size(); ++i) {
    mean_[i] = beta1 * mean_[i] + (1 - beta1) * g[i];
    square_[i] = beta2 * square_[i] + (1 - beta2) * g[i] * g[i];
    const double unbiased_mean = mean_[i] / (1 - std::pow(beta1, step.number));
    const double unbiased_square = square_[i] / (1 - std::pow(beta2, step.number));
    parameters_[i] -= static_cast<double>(step.rate) * unbiased_mean / (std::sqrt(unbiased_square) + kEpsilon);
  }
  return loss;
}

std::vector<Check> check_first_steps(const Training& training) {
  const Shape& shape = training.shape();
  Reference reference(shape);
  const std::vector<double> initial = reference.parameters();
  std::vector<double> gradient;
  reference.gradient(training.step(0).batch, &gradient);

  training.reset();
  training.enqueue(training.step(0));
  const std::vector<float> found = training.final_gradient();
  for (int i = 1; i < kCheckedSteps; ++i) training.enqueue(training.step(i));
  const std::vector<float> losses = training.losses();
  double first_loss = 0;
  double worst_loss = 0;
  for (int i = 0; i < kCheckedSteps; ++i) {
    const double loss = reference.train(training.step(i));
    if (i == 0) first_loss = loss;
    worst_loss = larger(worst_loss, std::abs(static_cast<double>(losses[static_cast<std::size_t>(i)]) - loss));
  }
  const double apart = distance(training.final_parameters(), reference.parameters());
  const double way = distance(reference.parameters(), initial);
  return {{"finite_differences", worst(shape, probed(shape, training.step(0).batch, gradient), gradient), 1e-4},
          {"gradient", worst(shape, found, gradient), 1e-4},
          {"first_losses", worst_loss / first_loss, 1e-2},
          {"parameters", apart / way, 1e-2}};
}

}  // namespace demo
