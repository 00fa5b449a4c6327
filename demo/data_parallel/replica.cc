#include "replica.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "../support.h"
#include "graphcache/buckets.h"

namespace demo {
namespace {

constexpr int kUsualFor = 50;  // number of steps in which one batch size is the usual one

// The batch sizes of all ranks together in each step, equal in every process.
std::vector<int> batch_sizes(int steps, int largest) {
  const auto buckets = graphcache::Buckets::every(largest / kBuckets, largest);
  std::mt19937 random(3);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<std::uint32_t>(bound)); };
  std::vector<int> sizes;
  int usual = largest;
  for (int i = 0; i < steps; ++i) {
    if (i % kUsualFor == 0) usual = 1 + below(largest);
    const int examples = below(4) != 0 ? usual : 1 + below(largest);
    sizes.push_back(static_cast<int>(buckets.up(examples)));
  }
  return sizes;
}

// Appends the rank's share of the first `size` examples of a batch.
void append_share(const float* batch, const Shape& shape, int size, int rank, int ranks, std::vector<float>* to) {
  const int rows = size / ranks;
  const float* const inputs = batch + rank * rows * kInputs;
  const float* const targets = batch + shape.targets() + rank * rows * kClasses;
  to->insert(to->end(), inputs, inputs + rows * kInputs);
  to->insert(to->end(), targets, targets + rows * kClasses);
}

}  // namespace

Replica::Replica(const Shape& shape, int steps, int rank, int ranks, Collective* collective)
    : training_({shape.batch / ranks, shape.hidden}, steps), collective_(collective) {
  for (const int size : batch_sizes(steps, shape.batch)) rows_.push_back(size / ranks);

  const std::vector<float> all = make_batches(shape);
  std::vector<float> shares;
  for (int batch = 0; batch < kBatches; ++batch) {
    const float* const first = all.data() + std::ptrdiff_t{batch} * shape.batch_floats();
    for (int bucket = 1; bucket <= kBuckets; ++bucket) {
      append_share(first, shape, bucket * (shape.batch / kBuckets), rank, ranks, &shares);
    }
  }
  void* memory = nullptr;
  DEMO_CUDA(cudaMallocHost(&memory, shares.size() * sizeof(float)));
  batches_ = static_cast<float*>(memory);
  std::copy(shares.begin(), shares.end(), batches_);
  DEMO_CUDA(cudaMalloc(&memory, sizeof(float)));
  mean_loss_ = static_cast<float*>(memory);
}

Replica::~Replica() {
  DEMO_CUDA(cudaFree(mean_loss_));
  DEMO_CUDA(cudaFreeHost(batches_));
}

Step Replica::step(int index) const {
  constexpr int kUnitsOfBatch = kBuckets * (kBuckets + 1) / 2;
  const int bucket = rows(index) / unit();
  const int units = index % kBatches * kUnitsOfBatch + bucket * (bucket - 1) / 2;
  Step step = training_.step(index);
  step.batch = batches_ + static_cast<std::size_t>(units) * batch_bytes(unit()) / sizeof(float);
  return step;
}

void Replica::gradient(int rows) const {
  training_.forward_and_backward(stream(), rows);
  if (collective_ == nullptr) return;
  collective_->average(training_.gradient(), training_.shape().all_parameters(), training_.loss(), mean_loss_,
                       stream());
}

void Replica::enqueue(const Step& step, int rows) const {
  DEMO_CUDA(cudaMemcpyAsync(training_.batch(), step.batch, batch_bytes(rows), cudaMemcpyHostToDevice, stream()));
  gradient(rows);
  training_.optimize(step.rate, step.number);
  DEMO_CUDA(cudaMemcpyAsync(step.loss, loss(), sizeof(float), cudaMemcpyDeviceToHost, stream()));
}

std::size_t Replica::batch_bytes(int rows) {
  return static_cast<std::size_t>(rows) * (kInputs + kClasses) * sizeof(float);
}

Trained train_eagerly(const Replica& replica) {
  replica.training().reset();
  for (int i = 0; i < replica.steps(); ++i) replica.enqueue(replica.step(i), replica.rows(i));
  return trained(replica.training());
}

}  // namespace demo
