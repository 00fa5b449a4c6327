#include "requests.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace demo {
namespace {

constexpr int kSwings = 2;

}  // namespace

Batcher::Batcher(const Traffic& traffic, const graphcache::Buckets& buckets, int worker)
    : traffic_(traffic), buckets_(buckets), random_(static_cast<unsigned>(worker) + 1) {
  const auto most = static_cast<int>(buckets.largest());
  for (int id = most - 1; id >= 0; --id) free_ids_.push_back(id);
  for (int block = cache_blocks(buckets) - 1; block >= 0; --block) free_blocks_.push_back(block);
  expected_ = traffic.load;  // requests that arrived before the first step
}

Batch Batcher::next(Row* rows) {
  arrive();
  admit();
  ++step_;
  Batch batch;
  if (active_.empty()) return batch;
  batch.rows = static_cast<int>(active_.size());
  batch.bucket = static_cast<int>(buckets_.up(batch.rows));
  std::fill(rows, rows + batch.bucket, Row{0, 0, -1, {}});
  int longest = 0;
  for (Sequence& sequence : active_) {
    longest = std::max(longest, sequence.position + 1);
    batch.tokens += sequence.position + 1 >= static_cast<int>(sequence.prompt.size()) ? 1 : 0;
    *rows++ = row_of(sequence);
  }
  batch.splits = (longest + kSplitTokens - 1) / kSplitTokens;
  const auto done = std::stable_partition(active_.begin(), active_.end(),
                                          [](const Sequence& sequence) { return sequence.position < sequence.length; });
  // Later work on the worker's stream runs after this step, so their blocks can be reused.
  std::for_each(done, active_.end(), [this](const Sequence& sequence) { release(sequence); });
  active_.erase(done, active_.end());
  return batch;
}

void Batcher::arrive() {
  const double life =
      (traffic_.prompt.least + traffic_.prompt.most + traffic_.answer.least + traffic_.answer.most) / 2.0;
  if (step_ > 0) {
    const double phase = 2 * std::numbers::pi * kSwings * step_ / traffic_.steps;
    expected_ += traffic_.load / life * (1 + traffic_.swing * std::sin(phase));
  }
  std::exponential_distribution<double> gap;
  for (; next_ < expected_; next_ += gap(random_)) {
    Sequence sequence;
    std::uniform_int_distribution<int> token(0, traffic_.vocabulary - 1);
    sequence.prompt.resize(static_cast<std::size_t>(draw(traffic_.prompt)));
    for (int& of_prompt : sequence.prompt) of_prompt = token(random_);
    sequence.length = static_cast<int>(sequence.prompt.size()) + draw(traffic_.answer) - 1;
    waiting_.push_back(std::move(sequence));
  }
}

void Batcher::admit() {
  while (!waiting_.empty() && !free_ids_.empty()) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    active_.back().id = free_ids_.back();
    free_ids_.pop_back();
  }
}

// The sequence's next row. Advances the sequence by one position.
Row Batcher::row_of(Sequence& sequence) {
  if (sequence.position % kBlockTokens == 0) {
    sequence.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  const auto at = static_cast<std::size_t>(sequence.position);
  Row row{at < sequence.prompt.size() ? sequence.prompt[at] : -1, sequence.id, sequence.position, {}};
  std::copy(sequence.blocks.begin(), sequence.blocks.end(), row.blocks);
  ++sequence.position;
  return row;
}

void Batcher::release(const Sequence& sequence) {
  free_ids_.push_back(sequence.id);
  free_blocks_.insert(free_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
}

int Batcher::draw(const Range& range) { return std::uniform_int_distribution<int>(range.least, range.most)(random_); }

std::size_t count_rows(const Traffic& traffic, const graphcache::Buckets& buckets, int worker) {
  Batcher batcher(traffic, buckets, worker);
  std::vector<Row> rows(static_cast<std::size_t>(buckets.largest()));
  std::size_t count = 0;
  for (int step = 0; step < traffic.steps; ++step) count += static_cast<std::size_t>(batcher.next(rows.data()).rows);
  return count;
}

}  // namespace demo
