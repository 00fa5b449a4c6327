#include "switching.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "raw_graph.h"
#include "ways.h"

namespace demo {
namespace {

constexpr int kWarmUp = 8;  // untimed iterations before the timed ones
constexpr int kBatch = 4;   // iterations of one timing, half of them of each bucket

struct Pair {
  const char* name;
  std::vector<Bucket> buckets;
};

// One executable for both buckets, updated from the template of each in turn.
class KeptTemplates : public Iteration {
 public:
  explicit KeptTemplates(const Loop& loop)
      : Iteration(loop), templates_{Template(loop, Request(0, 0)), Template(loop, Request(1, 0))} {}

  void run(const Request& request) override {
    executable_.update(templates_[static_cast<std::size_t>(request.bucket)].graph());
    executable_.patch(request);
    executable_.launch();
    ++updates_;
  }
  Counters counters() const override { return {2, 1, updates_, 1, 0}; }

 private:
  std::array<Template, 2> templates_;
  Executable executable_{loop_, templates_[0]};
  std::uint64_t updates_ = 0;
};

std::vector<Request> alternating(int iterations) {
  std::vector<Request> requests;
  for (int i = 0; i < iterations; ++i) requests.emplace_back(i % 2, i);
  return requests;
}

struct Side {
  Kind kind;
  std::vector<double> batch_us;  // host time of one iteration, of all repetitions
  double calls = 0;              // CUDA calls per timed iteration; 0 if unknown
  Counters counters;
};

// The GPU is idle when a batch begins.
bool measure(const Loop& loop, const std::vector<Request>& requests, const std::vector<std::uint32_t>& expected,
             const std::string& name, Side* side) {
  loop.clear();
  const std::unique_ptr<Iteration> iteration = side->kind.make(loop);
  std::uint64_t calls = 0;
  for (std::size_t i = 0; i < requests.size(); i += kBatch) {
    const std::uint64_t before = iteration->cuda_calls().value_or(0);
    const double us = microseconds([&] {
      for (std::size_t j = i; j < i + kBatch; ++j) iteration->run(requests[j]);
    });
    if (i >= kWarmUp) {
      calls += iteration->cuda_calls().value_or(0) - before;
      side->batch_us.push_back(us / kBatch);
    }
    DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  }
  side->calls = static_cast<double>(calls) / static_cast<double>(requests.size() - kWarmUp);
  side->counters = iteration->counters();
  return loop.equals(expected, (name + ", " + side->kind.name).c_str());
}

Section::Row row(const std::string& name, const Side& raw, const Side& cache) {
  const auto count = [](std::uint64_t number) { return static_cast<double>(number); };
  const auto calls = [](const Side& side) { return side.calls > 0 ? std::optional<double>(side.calls) : std::nullopt; };
  const double raw_us = median(raw.batch_us);
  const double cache_us = median(cache.batch_us);
  return {name,
          {{"raw_us", raw_us, 2, true},
           {"cache_us", cache_us, 2, true},
           {"cache_to_raw", cache_us / raw_us, 2, true},
           {"raw_calls", calls(raw), 2},
           {"cache_calls", calls(cache), 2},
           {"cache_captures", count(cache.counters.captures)},
           {"cache_instantiations", count(cache.counters.instantiations)},
           {"cache_updates", count(cache.counters.updates)}}};
}

}  // namespace

bool measure_switching(Loop loop, int iterations, int repetitions, Section* section) {
  loop.products = nullptr;
  const int nodes = loop.nodes;
  const int half = kSwitchBlocks / 2;
  const Pair pairs[] = {
      {"equal_grids", {{half, 0, 0, nodes}, {half, 1, 0, nodes}}},
      {"different_grids", {{half, 0, 0, nodes}, {kSwitchBlocks, 1, 0, nodes}}},
      {"equal_grids_4_nodes", {{half, 0, 1, 5}, {half, 1, 1, 5}}},
  };
  const std::vector<Request> requests = alternating(kWarmUp + (iterations + kBatch - 1) / kBatch * kBatch);
  bool equal = true;
  for (const Pair& pair : pairs) {
    loop.buckets = pair.buckets;
    const std::vector<std::uint32_t> expected = reference(loop, requests);
    Side raw{{"raw", [](const Loop& with) { return std::make_unique<KeptTemplates>(with); }}, {}, 0, {}};
    Side cache{cache_kind("cache", {.max_executables = 1}), {}, 0, {}};
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      Side* order[] = {&raw, &cache};
      if (repetition % 2 == 1) std::swap(order[0], order[1]);
      for (Side* side : order) equal = measure(loop, requests, expected, pair.name, side) && equal;
    }
    section->rows.push_back(row(pair.name, raw, cache));
  }
  return equal;
}

}  // namespace demo
