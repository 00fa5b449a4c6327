#include "reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker.h"

namespace demo {
namespace {

// A row of numbers for each position.
class Matrix {
 public:
  Matrix(int rows, int positions) : positions_(size(positions)), numbers_(size(rows) * positions_) {}

  double& at(int row, int position) { return numbers_[size(row) * positions_ + size(position)]; }
  double at(int row, int position) const { return numbers_[size(row) * positions_ + size(position)]; }
  int positions() const { return static_cast<int>(positions_); }

 private:
  std::size_t positions_;
  std::vector<double> numbers_;
};

double element(const Tensor& tensor, int output, int input) {
  const std::uint32_t number = tensor.first +
                               static_cast<std::uint32_t>(output) * static_cast<std::uint32_t>(tensor.inputs) +
                               static_cast<std::uint32_t>(input);
  return static_cast<double>(to_float(weight(number, tensor.offset, tensor.scale)));
}

Matrix multiply(const Tensor& tensor, const Matrix& in) {
  Matrix out(tensor.outputs, in.positions());
  for (int output = 0; output < tensor.outputs; ++output) {
    for (int input = 0; input < tensor.inputs; ++input) {
      const double factor = element(tensor, output, input);
      for (int t = 0; t < in.positions(); ++t) out.at(output, t) += factor * in.at(input, t);
    }
  }
  return out;
}

Matrix normed(const Tensor& tensor, const Matrix& in) {
  Matrix out(tensor.inputs, in.positions());
  for (int t = 0; t < in.positions(); ++t) {
    double squares = 0;
    for (int i = 0; i < tensor.inputs; ++i) squares += in.at(i, t) * in.at(i, t);
    const double root = std::sqrt(squares / tensor.inputs + 1e-5);
    for (int i = 0; i < tensor.inputs; ++i) out.at(i, t) = in.at(i, t) / root * element(tensor, 0, i);
  }
  return out;
}

void add(const Matrix& what, int rows, Matrix* to) {
  for (int i = 0; i < rows; ++i) {
    for (int t = 0; t < to->positions(); ++t) to->at(i, t) += what.at(i, t);
  }
}

// Rotates each pair of numbers of one head, half a head apart, by an angle that grows with the position.
void turn(int first, int head, Matrix* matrix) {
  const int half = head / 2;
  for (int pair = 0; pair < half; ++pair) {
    for (int t = 0; t < matrix->positions(); ++t) {
      const double angle = t * std::pow(10000.0, -static_cast<double>(pair) / half);
      double& x = matrix->at(first + pair, t);
      double& y = matrix->at(first + pair + half, t);
      const double turned = x * std::cos(angle) - y * std::sin(angle);
      y = x * std::sin(angle) + y * std::cos(angle);
      x = turned;
    }
  }
}

Matrix attention(const Shape& shape, Matrix qkv) {
  const int head = shape.head();
  const int positions = qkv.positions();
  Matrix out(shape.width, positions);
  for (int query = 0; query < shape.width; query += head) {
    const int key = query + shape.width;
    const int value = key + shape.width;
    turn(query, head, &qkv);
    turn(key, head, &qkv);
    for (int t = 0; t < positions; ++t) {
      std::vector<double> weights;
      double sum = 0;
      for (int s = 0; s <= t; ++s) {
        double score = 0;
        for (int i = 0; i < head; ++i) score += qkv.at(query + i, t) * qkv.at(key + i, s);
        weights.push_back(std::exp(score / std::sqrt(head)));
        sum += weights.back();
      }
      for (int i = 0; i < head; ++i) {
        for (int s = 0; s <= t; ++s) out.at(query + i, t) += weights[size(s)] / sum * qkv.at(value + i, s);
      }
    }
  }
  return out;
}

Matrix gated(const Matrix& in, int hidden) {
  Matrix out(hidden, in.positions());
  for (int i = 0; i < hidden; ++i) {
    for (int t = 0; t < in.positions(); ++t) {
      const double x = in.at(i, t);
      out.at(i, t) = x / (1 + std::exp(-x)) * in.at(hidden + i, t);
    }
  }
  return out;
}

// std::max, but NaN counts as the largest value.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

// The tokens of one sequence, and the device's results for them.
struct Served {
  std::vector<int> tokens;
  std::vector<std::vector<float>> logits;
  std::vector<Choice> choices;
};

// In the order in which the sequences arrived.
std::vector<Served> serve_on_device(const Network& network, const Traffic& traffic,
                                    const graphcache::Buckets& buckets) {
  const Model model(network);
  const Worker worker(model, buckets);
  constexpr int kWorker = 3;  // a worker whose requests are of all kinds
  Batcher batcher(traffic, buckets, kWorker);
  std::vector<Served> served;
  std::vector<std::size_t> of_sequence(static_cast<std::size_t>(buckets.largest()));
  const std::size_t vocabulary = size(network.shape().vocabulary);
  for (int step = 0; step < traffic.steps; ++step) {
    const Batch batch = batcher.next(worker.rows(0));
    if (batch.rows == 0) continue;
    worker.enqueue({batch.bucket, batch.splits, worker.rows(0), worker.choices(0)});
    DEMO_CUDA(cudaStreamSynchronize(worker.stream()));
    std::vector<float> logits(size(batch.rows) * vocabulary);
    DEMO_CUDA(cudaMemcpy(logits.data(), worker.logits(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < batch.rows; ++i) {
      const Row& row = worker.rows(0)[i];
      std::size_t& index = of_sequence[size(row.sequence)];
      if (row.position == 0) {
        index = served.size();
        served.emplace_back();
      }
      Served& sequence = served[index];
      sequence.tokens.push_back(row.token >= 0 ? row.token : sequence.choices.back().token);
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(size(i) * vocabulary);
      sequence.logits.emplace_back(first, first + static_cast<std::ptrdiff_t>(vocabulary));
      sequence.choices.push_back(worker.choices(0)[i]);
    }
  }
  return served;
}

}  // namespace

std::vector<double> reference_logits(const Network& network, const std::vector<int>& tokens) {
  const Shape& shape = network.shape();
  const int positions = static_cast<int>(tokens.size());
  Matrix hidden(shape.width, positions);
  for (int t = 0; t < positions; ++t) {
    for (int i = 0; i < shape.width; ++i) hidden.at(i, t) = element(network.embedding(), tokens[size(t)], i);
  }
  for (const Layer& layer : network.layers()) {
    const Matrix qkv = multiply(layer.qkv, normed(layer.attention_norm, hidden));
    add(multiply(layer.attention_out, attention(shape, qkv)), shape.width, &hidden);
    const Matrix gate_up = multiply(layer.gate_up, normed(layer.feed_forward_norm, hidden));
    add(multiply(layer.down, gated(gate_up, shape.hidden)), shape.width, &hidden);
  }
  const Matrix logits = multiply(network.unembedding(), normed(network.final_norm(), hidden));
  std::vector<double> by_position;
  for (int t = 0; t < positions; ++t) {
    for (int i = 0; i < shape.vocabulary; ++i) by_position.push_back(logits.at(i, t));
  }
  return by_position;
}

std::vector<Check> check_steps(Shape shape) {
  shape.layers = 2;
  const Network network(shape);
  const graphcache::Buckets buckets{2, 4, 6};
  // Some sequences need more than one block of the cache and more than one split, and some free blocks for others.
  const Traffic traffic{kSplitTokens + 8, 3, 0, {2, 6}, {8, 2 * kSplitTokens}, shape.vocabulary};
  double logits_apart = 0;
  double worse_choice = 0;
  double choices = 0;
  double wrong_choices = 0;
  for (const Served& served : serve_on_device(network, traffic, buckets)) {
    const std::vector<double> reference = reference_logits(network, served.tokens);
    for (std::size_t t = 0; t < served.tokens.size(); ++t) {
      const std::vector<float>& found = served.logits[t];
      const double* const right = reference.data() + t * found.size();
      double squares = 0;
      double differences = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double difference = static_cast<double>(found[i]) - right[i];
        squares += right[i] * right[i];
        differences += difference * difference;
      }
      const Choice& choice = served.choices[t];
      const auto best = std::max_element(found.begin(), found.end());
      if (choice.token != best - found.begin() || !(choice.logit == *best)) ++wrong_choices;
      ++choices;
      const double root_mean_square = std::sqrt(squares / static_cast<double>(found.size()));
      const double largest = *std::max_element(right, right + found.size());
      logits_apart = larger(std::sqrt(differences / squares), logits_apart);
      const bool is_token = choice.token >= 0 && choice.token < shape.vocabulary;
      const double of_choice = is_token ? right[choice.token] : -std::numeric_limits<double>::infinity();
      worse_choice = larger((largest - of_choice) / root_mean_square, worse_choice);
    }
  }
  return {
      {"logits", logits_apart, 0.03}, {"choices", worse_choice, 0.1}, {"not_the_largest", wrong_choices / choices, 0}};
}

}  // namespace demo
