#include "worker.h"

#include <algorithm>

namespace demo {
namespace {

// As many rows and choices take a multiple of 256 bytes. Pointers with other low 8 bits are other entries of a key with
// graphcache::values().
constexpr std::size_t kAlignedRows = 64;
static_assert(kAlignedRows * sizeof(Row) % 256 == 0 && kAlignedRows * sizeof(Choice) % 256 == 0);

dim3 grid(int x) { return dim3(static_cast<unsigned>(x)); }

}  // namespace

Worker::Worker(const Model& model, const graphcache::Buckets& buckets)
    : model_(model),
      most_(static_cast<std::size_t>(buckets.largest())),
      place_rows_((most_ + kAlignedRows - 1) / kAlignedRows * kAlignedRows),
      layer_numbers_(size(cache_blocks(buckets)) * kBlockTokens * size(model.shape().width)),
      rows_in_(kPlaces * place_rows_),
      choices_out_(kPlaces * place_rows_),
      products_(stream()) {
  const Shape& shape = model.shape();
  const std::size_t width = most_ * size(shape.width);
  const std::size_t hidden = most_ * size(shape.hidden);
  rows_ = memory_.allocate<Row>(most_);
  choices_ = memory_.allocate<Choice>(most_);
  chosen_ = memory_.allocate<int>(most_);
  keys_ = memory_.allocate<Bf16>(size(shape.layers) * layer_numbers_);
  values_ = memory_.allocate<Bf16>(size(shape.layers) * layer_numbers_);
  hidden_ = memory_.allocate<Bf16>(width);
  normed_ = memory_.allocate<Bf16>(width);
  qkv_ = memory_.allocate<Bf16>(3 * width);
  parts_ = memory_.allocate<float>(most_ * size(shape.heads) * kMostSplits * size(shape.head() + 2));
  attended_ = memory_.allocate<Bf16>(width);
  gate_up_ = memory_.allocate<Bf16>(2 * hidden);
  gated_ = memory_.allocate<Bf16>(hidden);
  logits_ = memory_.allocate<float>(most_ * size(shape.vocabulary));
  DEMO_CUDA(cudaMemsetAsync(chosen_, 0, most_ * sizeof(*chosen_), stream()));
  warm_up(buckets);
}

void Worker::warm_up(const graphcache::Buckets& buckets) const {
  std::fill(rows(0), rows(0) + most_, Row{0, 0, -1, {}});
  for (const std::int64_t bucket : buckets) enqueue(any_step(static_cast<int>(bucket)));
  DEMO_CUDA(cudaStreamSynchronize(stream()));
}

void Worker::copy_rows(const Step& step) const {
  DEMO_CUDA(cudaMemcpyAsync(rows_, step.rows, rows_bytes(step.bucket), cudaMemcpyHostToDevice, stream()));
}

void Worker::copy_choices(const Step& step) const {
  DEMO_CUDA(cudaMemcpyAsync(step.choices, choices_, choices_bytes(step.bucket), cudaMemcpyDeviceToHost, stream()));
}

void Worker::forward(const Step& step, const std::function<void(int layer)>& attend) const {
  using Into = Products::Into;
  const Network& network = model_.network();
  const Shape& shape = model_.shape();
  const int rows = step.bucket;
  const dim3 block = threads(512);
  const auto norm = [&](const Tensor& weights) {
    launch(rms_norm, grid(rows), block, stream(), hidden_, model_.weights(weights), normed_, shape.width);
  };
  const auto multiply = [&](const Tensor& weights, const Bf16* in, void* out, Into into) {
    products_.enqueue(model_, weights, in, out, rows, into);
  };
  launch(embed, grid(rows), block, stream(), rows_, chosen_, model_.weights(network.embedding()), hidden_, shape.width);
  for (int i = 0; i < shape.layers; ++i) {
    const Layer& layer = network.layers()[size(i)];
    const std::size_t cache = size(i) * layer_numbers_;
    norm(layer.attention_norm);
    multiply(layer.qkv, normed_, qkv_, Into::kBf16);
    launch(rope_and_append, grid(rows), block, stream(), rows_, qkv_, keys_ + cache, values_ + cache, shape.heads,
           shape.head());
    attend(i);
    launch(combine, dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(rows)), threads(64), stream(), rows_,
           parts_, attended_, shape.heads, shape.head());
    multiply(layer.attention_out, attended_, hidden_, Into::kAddedToBf16);
    norm(layer.feed_forward_norm);
    multiply(layer.gate_up, normed_, gate_up_, Into::kBf16);
    launch(gate, grid(rows), block, stream(), gate_up_, gated_, shape.hidden);
    multiply(layer.down, gated_, hidden_, Into::kAddedToBf16);
  }
  norm(network.final_norm());
  multiply(network.unembedding(), normed_, logits_, Into::kFloat);
  launch(choose, grid(rows), block, stream(), rows_, logits_, choices_, chosen_, shape.vocabulary);
}

void Worker::enqueue(const Step& step) const {
  copy_rows(step);
  forward(step, [&](int layer) { attend(step, layer); });
  copy_choices(step);
}

void Worker::attend(const Step& step, int layer) const {
  launch(demo::attend, attention_grid(step), attention_block(), stream(), attention(layer));
}

Attention Worker::attention(int layer) const {
  const std::size_t cache = size(layer) * layer_numbers_;
  return {rows_, qkv_, keys_ + cache, values_ + cache, parts_, shape().heads, shape().head()};
}

dim3 Worker::attention_grid(const Step& step) const {
  return dim3(static_cast<unsigned>(step.splits), static_cast<unsigned>(shape().heads),
              static_cast<unsigned>(step.bucket));
}

}  // namespace demo
