#include "measure.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <memory>

namespace demo {
namespace {

constexpr int kRepetitions = 3;
constexpr int kBatch = 8;  // steps of one host timing

struct Samples {
  std::vector<double> host_us;
  std::vector<double> total_ms;
};

// One repetition of one way: all steps for the total time, then again for the host time.
bool measure(const Kind& kind, const Training& training, const Trained& expected, Samples* samples, Way* way) {
  const int steps = training.steps();
  training.reset();
  auto trainer = kind.make(training);
  samples->total_ms.push_back(microseconds([&] {
                                for (int i = 0; i < steps; ++i) trainer->run(training.step(i));
                                DEMO_CUDA(cudaStreamSynchronize(training.stream()));
                              }) /
                              1000);
  way->outcomes = trainer->outcomes();
  bool equal = equals(trained(training), expected, kind.name);

  training.reset();
  const std::uint64_t captures_before = trainer->captures();
  std::uint64_t calls = 0;
  std::uint64_t counted = 0;  // by the runtime, if it counts
  for (int first = 0; first < steps; first += kBatch) {
    const int count = std::min(kBatch, steps - first);
    const std::uint64_t calls_before = trainer->cuda_calls().value_or(0);
    const std::uint64_t counted_before = runtime_calls().value_or(0);
    samples->host_us.push_back(microseconds([&] {
                                 for (int i = first; i < first + count; ++i) trainer->run(training.step(i));
                               }) /
                               count);
    counted += runtime_calls().value_or(0) - counted_before;
    calls += trainer->cuda_calls().value_or(0) - calls_before;
    DEMO_CUDA(cudaStreamSynchronize(training.stream()));
  }
  if (trainer->cuda_calls()) way->cuda_calls_per_iteration = static_cast<double>(calls) / steps;
  way->columns = {{"final_loss", static_cast<double>(training.losses().back()), 6}};
  if (runtime_calls() && counted != calls) {
    absl::FPrintF(stderr, "%s: %d CUDA calls were made, %d reported\n", kind.name, counted, calls);
    equal = false;
  }
  if (trainer->captures() != captures_before) {
    absl::FPrintF(stderr, "%s: %d captures after the first pass\n", kind.name, trainer->captures() - captures_before);
    equal = false;
  }
  return equals(trained(training), expected, kind.name) && equal;
}

}  // namespace

Trained train_eagerly(const Training& training) {
  training.reset();
  for (int i = 0; i < training.steps(); ++i) training.enqueue(training.step(i));
  return trained(training);
}

std::vector<Way> measure(const Training& training, const Trained& expected, bool* equal) {
  const std::vector<Kind> all = kinds();
  std::vector<Samples> samples(all.size());
  std::vector<Way> ways(all.size());
  repeat_in_shuffled_order(all.size(), kRepetitions, [&](std::size_t i) {
    if (!measure(all[i], training, expected, &samples[i], &ways[i])) *equal = false;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    ways[i].name = all[i].name;
    ways[i].host_us = median(samples[i].host_us);
    ways[i].total_ms = median(samples[i].total_ms);
  }
  return ways;
}

}  // namespace demo
