#include "measure.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "ways.h"

namespace demo {
namespace {

constexpr int kRepetitions = 3;     // on a GPU; on hostrt times mean nothing
constexpr int kBatch = 10;          // steps of one host timing
constexpr int kCompareEvery = 100;  // steps

LossDifference difference(const std::vector<float>& found, const std::vector<float>& expected) {
  LossDifference largest;
  const auto raise = [](double* to, double value) { *to = std::isnan(value) || value > *to ? value : *to; };
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto loss = static_cast<double>(expected[i]);
    const double apart = std::abs(static_cast<double>(found[i]) - loss);
    raise(&largest.of_first, apart / static_cast<double>(expected.front()));
    raise(&largest.of_own, apart / loss);
  }
  return largest;
}

struct Samples {
  std::vector<double> host_us;
  std::vector<double> total_ms;
};

class Measurement {
 public:
  Measurement(Ranks& team, const Replica& replica, const Trained& expected)
      : team_(team), replica_(replica), expected_(expected) {}

  // One repetition: all steps for the total time, then again for the host time.
  void measure(const Kind& kind, Samples* samples, Way* way) {
    replica_.training().reset();
    const std::unique_ptr<Trainer> trainer = kind.make(replica_);
    samples->total_ms.push_back(time_all(*trainer));
    if (const auto stats = trainer->stats()) way->outcomes = outcome_counts(*stats);
    compare_decisions(*trainer, kind.name, replica_.steps());
    check_equal(kind.name);

    replica_.training().reset();
    std::uint64_t calls = 0;
    for (int first = 0; first < replica_.steps(); first += kBatch) {
      const int end = std::min(first + kBatch, replica_.steps());
      const std::uint64_t calls_before = runtime_calls().value_or(0);
      samples->host_us.push_back(microseconds([&] { run(*trainer, first, end); }) / (end - first));
      calls += runtime_calls().value_or(0) - calls_before;
      DEMO_CUDA(cudaStreamSynchronize(replica_.stream()));
      if (end % kCompareEvery == 0) compare_decisions(*trainer, kind.name, end);
    }
    if (runtime_calls()) way->cuda_calls_per_iteration = static_cast<double>(calls) / replica_.steps();
    way->columns = {{"final_loss", static_cast<double>(replica_.training().losses().back()), 6}};
    check_equal(kind.name);
    if (const auto stats = trainer->stats()) result_.caches[kind.name] = *stats;
  }

  Measured& result() { return result_; }

 private:
  void run(Trainer& trainer, int first, int end) const {
    for (int i = first; i < end; ++i) trainer.run(replica_.step(i), replica_.rows(i));
  }

  // In milliseconds, until the last rank is done.
  double time_all(Trainer& trainer) const {
    team_.meet();
    const double own = microseconds([&] {
      run(trainer, 0, replica_.steps());
      DEMO_CUDA(cudaStreamSynchronize(replica_.stream()));
    });
    const std::vector<double> all = team_.gather(own);
    return *std::max_element(all.begin(), all.end()) / 1000;
  }

  // For ways that make decisions. All ranks see the same numbers, so the first one reports for all.
  void compare_decisions(const Trainer& trainer, const char* way, int step) {
    if (replica_.collective() == nullptr || !trainer.stats()) return;
    const std::vector<std::uint64_t> all = replica_.collective()->gather(trainer.decisions(), replica_.stream());
    ++result_.comparisons;
    const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t one) { return one != all.front(); });
    if (other == all.end()) return;
    if (result_.differing++ == 0 && team_.rank() == 0) {
      absl::FPrintF(stderr, "%s: by step %d, rank %d has decided otherwise than rank 0\n", way, step,
                    other - all.begin());
    }
  }

  void check_equal(const char* way) {
    if (!equals(trained(replica_.training()), expected_, way)) result_.equal = false;
  }

  Ranks& team_;
  const Replica& replica_;
  const Trained& expected_;
  Measured result_;
};

}  // namespace

Measured measure(Ranks& team, const Shape& shape, int steps, const graphcache::Options& options, const Trained& alone) {
  const std::unique_ptr<Collective> collective = team.count() > 1 ? make_collective(team) : nullptr;
  const Replica replica(shape, steps, team.rank(), team.count(), collective.get());
  // Before the first capture, because NCCL connects the ranks when they first work together.
  const Trained expected = train_eagerly(replica);
  Measurement measurement(team, replica, expected);
  Measured& result = measurement.result();
  result.losses = difference(expected.losses, alone.losses);

  const std::vector<Kind> all = kinds(options);
  std::vector<Samples> samples(all.size());
  result.ways.resize(all.size());
  repeat_in_shuffled_order(all.size(), on_gpu() ? kRepetitions : 1,
                           [&](std::size_t i) { measurement.measure(all[i], &samples[i], &result.ways[i]); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    Way& way = result.ways[i];
    way.name = all[i].name;
    way.host_us = median(samples[i].host_us);
    way.total_ms = median(samples[i].total_ms);
    way.columns.insert(way.columns.begin(), {"steps/s", steps / way.total_ms * 1000, 0, true});
  }
  return result;
}

}  // namespace demo
