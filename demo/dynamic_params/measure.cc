#include "measure.h"

#include <absl/strings/str_format.h>

#include <cstring>

namespace demo {
namespace {

constexpr int kRepetitions = 5;

// The expected value of each element after `iterations`.
std::uint32_t reference(const Loop& loop, int iterations, bool follows) {
  std::uint32_t state = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (int node = 0; node < loop.nodes; ++node) {
      const float value = loop.is_dynamic(node) ? Loop::changing(follows ? iteration : 0) : Loop::fixed(node);
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      state = (state ^ bits) * 16777619u + Loop::salt(node);
    }
  }
  return state;
}

bool equals(const Loop& loop, std::uint32_t expected, const char* way, const char* phase) {
  std::vector<std::uint32_t> state(kCount);
  DEMO_CUDA(cudaMemcpy(state.data(), loop.state, kCount * sizeof(state[0]), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    if (state[i] == expected) continue;
    absl::FPrintF(stderr, "%s, %s: element %d is %08x, the host reference %08x\n", way, phase, i, state[i], expected);
    return false;
  }
  return true;
}

struct Samples {
  std::vector<double> host_us;
  std::vector<double> total_ms;
};

// One repetition of one way: the whole loop, then the host time.
bool measure(const Kind& kind, const Loop& loop, const Amount& amount, Samples* samples, Way* way) {
  const std::size_t bytes = kCount * sizeof(std::uint32_t);
  DEMO_CUDA(cudaMemsetAsync(loop.state, 0, bytes, loop.stream));
  DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  auto iteration = kind.make(loop);
  samples->total_ms.push_back(microseconds([&] {
                                for (int i = 0; i < amount.iterations; ++i) iteration->run(i);
                                DEMO_CUDA(cudaStreamSynchronize(loop.stream));
                              }) /
                              1000);
  way->outcomes = iteration->outcomes();
  bool equal = equals(loop, reference(loop, amount.iterations, kind.follows), kind.name, "all iterations");

  DEMO_CUDA(cudaMemsetAsync(loop.state, 0, bytes, loop.stream));
  DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  std::uint64_t calls = 0;
  std::uint64_t counted = 0;  // by the runtime, if it counts
  for (int batch = 0; batch < amount.batches; ++batch) {
    const std::uint64_t before = iteration->cuda_calls().value_or(0);
    const std::uint64_t counted_before = runtime_calls().value_or(0);
    samples->host_us.push_back(microseconds([&] {
                                 for (int i = 0; i < kBatch; ++i) iteration->run(batch * kBatch + i);
                               }) /
                               kBatch);
    counted += runtime_calls().value_or(0) - counted_before;
    calls += iteration->cuda_calls().value_or(0) - before;
    DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  }
  const int batched = amount.batches * kBatch;
  if (iteration->cuda_calls()) way->cuda_calls_per_iteration = static_cast<double>(calls) / batched;
  if (runtime_calls() && counted != calls) {
    absl::FPrintF(stderr, "%s: %d CUDA calls were made, %d reported\n", kind.name, counted, calls);
    equal = false;
  }
  return equals(loop, reference(loop, batched, kind.follows), kind.name, "batches") && equal;
}

}  // namespace

std::vector<Way> measure(const Loop& loop, const std::vector<Kind>& kinds, const Amount& amount, bool* equal) {
  std::vector<Samples> samples(kinds.size());
  std::vector<Way> ways(kinds.size());
  repeat_in_shuffled_order(kinds.size(), kRepetitions, [&](std::size_t i) {
    if (!measure(kinds[i], loop, amount, &samples[i], &ways[i])) *equal = false;
  });
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    ways[i].name = kinds[i].name;
    ways[i].host_us = median(samples[i].host_us);
    ways[i].total_ms = median(samples[i].total_ms);
  }
  return ways;
}

}  // namespace demo
