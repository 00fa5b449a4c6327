#include "generators.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "price.h"

namespace graphcache::sim {
namespace {

class Random {  // SplitMix64: the same numbers with every standard library
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() % n); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

// As in the demo `buckets`: all nodes have another grid, and two take values.
Graph grids(std::uint32_t nodes) {
  return {.nodes = nodes,
          .slot_nodes = 2,
          .signature = 1,
          .table_class = 1,
          .differing = nodes,
          .difference = Difference::kGrids};
}

Graph few_arguments(std::uint32_t nodes) {
  return {.nodes = nodes, .slot_nodes = 2, .signature = 1, .table_class = 1, .differing = 4};
}

Graph many_slots(std::uint32_t nodes) {
  Graph graph = grids(nodes);
  graph.slot_nodes = nodes / 2;
  return graph;
}

Graph other_kernels(std::uint32_t nodes) {
  Graph graph = grids(nodes);
  graph.table_class = 0;
  graph.difference = Difference::kKernels;
  return graph;
}

std::vector<Graph> like(const Graph& graph, std::size_t keys) { return std::vector<Graph>(keys, graph); }

std::vector<Graph> unlike(const Graph& graph, std::size_t keys) {
  std::vector<Graph> graphs(keys, graph);
  for (std::size_t i = 0; i < keys; ++i) graphs[i].signature = static_cast<std::uint32_t>(i + 1);
  return graphs;
}

// Three of four keys belong to one of three families, the fourth to none.
std::vector<Graph> mixed(const Graph& graph, std::size_t keys) {
  std::vector<Graph> graphs(keys, graph);
  for (std::size_t i = 0; i < keys; ++i) {
    graphs[i].signature = static_cast<std::uint32_t>(i % 4 == 3 ? 100 + i : i % 4);
  }
  return graphs;
}

// Key i is drawn with a weight of 1 / (i + 1).
Trace zipf(std::string name, std::vector<Graph> graphs, std::size_t runs, std::uint32_t streams = 1) {
  std::vector<std::uint64_t> up_to;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < graphs.size(); ++i) up_to.push_back(sum += 1'000'000'000 / (i + 1));
  Trace trace{std::move(name), std::move(graphs), {}};
  Random random(1);
  for (std::size_t i = 0; i < runs; ++i) {
    const auto drawn = std::upper_bound(up_to.begin(), up_to.end(), random.next() % sum);
    trace.runs.push_back({static_cast<KeyId>(drawn - up_to.begin()), random.below(streams), true});
  }
  return trace;
}

// Each of four threads has a stream, and runs any key.
Trace server(std::string name, const Graph& graph) {
  Trace trace = zipf(std::move(name), like(graph, 64), 5000, 4);
  for (Run& run : trace.runs) run.thread = run.stream;
  return trace;
}

// Device memory holds eight executables, and a part of one.
Trace limited(Trace trace, std::size_t spare_percent) {
  trace.max_device_bytes = price::bytes(trace.graphs.front()) * (800 + spare_percent) / 100;
  return trace;
}

Trace in_turn(std::string name, std::vector<Graph> graphs, std::size_t runs) {
  Trace trace{std::move(name), std::move(graphs), {}};
  for (std::size_t i = 0; i < runs; ++i) trace.runs.push_back({static_cast<KeyId>(i % trace.graphs.size()), 0, true});
  return trace;
}

// Twelve of 256 keys are in use. Every `stay` runs, the oldest is replaced by a new one.
Trace drift(std::string name, const Graph& graph, std::size_t runs, std::size_t stay) {
  Trace trace{std::move(name), like(graph, 256), {}};
  Random random(2);
  for (std::size_t i = 0; i < runs; ++i) {
    trace.runs.push_back({static_cast<KeyId>((i / stay + random.below(12)) % 256), 0, true});
  }
  return trace;
}

// Twelve keys are in use, half of which are never used again after a while.
Trace retire(std::string name, const Graph& graph, std::size_t runs) {
  Trace trace{std::move(name), like(graph, 12), {}};
  Random random(5);
  for (std::size_t i = 0; i < runs; ++i) {
    const bool is_early = i < runs / 4;
    trace.runs.push_back({static_cast<KeyId>(is_early ? random.below(12) : 6 + random.below(6)), 0, true});
  }
  return trace;
}

// Eight keys are in use, and every tenth run is of a key that is never used again.
Trace one_time(std::string name, const Graph& graph, std::size_t runs) {
  Trace trace{std::move(name), like(graph, 8 + runs / 10), {}};
  Random random(3);
  KeyId next = 8;
  for (std::size_t i = 0; i < runs; ++i) trace.runs.push_back({i % 10 == 9 ? next++ : random.below(8), 0, true});
  return trace;
}

// Each of 64 keys runs three times, and then twelve of another signature run.
Trace phases(std::string name, const Graph& graph, std::size_t runs) {
  Trace trace{std::move(name), like(graph, 76), {}};
  for (std::size_t key = 64; key < 76; ++key) trace.graphs[key].signature = 2;
  Random random(6);
  for (std::size_t i = 0; i < runs; ++i) {
    const bool is_early = i < 192;
    trace.runs.push_back({static_cast<KeyId>(is_early ? i % 64 : 64 + random.below(12)), 0, true});
  }
  return trace;
}

// Keys that are used once each.
Trace once(std::string name, const Graph& graph, std::size_t runs) {
  return in_turn(std::move(name), like(graph, runs), runs);
}

// Like the demo `decode`: four workers with a stream each, a key for each worker and bucket, six families of buckets. A
// worker's load oscillates between a quarter and 7/4 of its mean, twice. Every run has other values.
Trace decode(std::string name, std::uint32_t slot_nodes) {
  constexpr std::uint32_t kWorkers = 4, kBuckets = 17;
  const Graph graph{.nodes = 163,
                    .slot_nodes = slot_nodes,
                    .signature = 0,
                    .table_class = 1,
                    .differing = 150,
                    .difference = Difference::kGrids,
                    .node_ns = 3000};
  Trace trace{std::move(name), like(graph, kWorkers * kBuckets), {}};
  for (std::size_t key = 0; key < trace.graphs.size(); ++key) {
    trace.graphs[key].signature = static_cast<std::uint32_t>(key % kBuckets * 6 / kBuckets + 1);
  }
  Random random(4);
  constexpr int kSteps = 2000;
  std::vector<int> load(kWorkers, 24);
  for (int step = 0; step < kSteps; ++step) {
    const double swing = 24 * (1 + 0.75 * std::sin(2 * 3.14159265 * 2 * step / kSteps));
    for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
      const int towards = load[worker] < static_cast<int>(swing) ? 60 : 40;
      if (random.chance(40)) load[worker] += random.chance(static_cast<std::uint32_t>(towards)) ? 1 : -1;
      load[worker] = std::clamp(load[worker], 0, 64);
      const auto bucket = std::min(static_cast<std::uint32_t>(load[worker]) / 4, kBuckets - 1);
      trace.runs.push_back({worker * kBuckets + bucket, worker, true});
    }
  }
  return trace;
}

}  // namespace

std::vector<Trace> generated_traces() {
  return {
      zipf("zipf", like(grids(200), 64), 5000),
      zipf("zipf_short", like(grids(200), 64), 1000),
      zipf("zipf_long", like(grids(200), 64), 20'000),
      zipf("zipf_small", like(grids(8), 64), 5000),
      zipf("zipf_small_short", like(grids(8), 64), 1000),
      zipf("zipf_40", like(grids(40), 64), 5000),
      zipf("zipf_100", like(grids(100), 64), 5000),
      zipf("zipf_large", like(grids(1000), 64), 5000),
      zipf("zipf_arguments", like(few_arguments(200), 64), 5000),
      zipf("zipf_arguments_large", like(few_arguments(1000), 64), 2000),
      zipf("zipf_kernels", like(other_kernels(200), 64), 5000),
      zipf("zipf_slots", like(many_slots(200), 64), 5000),
      zipf("zipf_no_siblings", unlike(grids(200), 64), 5000),
      zipf("slots_no_siblings", unlike(many_slots(200), 64), 5000),
      zipf("zipf_mixed", mixed(grids(200), 64), 5000),
      zipf("zipf_mixed_small", mixed(grids(8), 64), 5000),
      zipf("roaming", like(grids(200), 16), 5000, 4),
      server("server", grids(200)),
      server("server_small", grids(8)),
      limited(zipf("bytes", like(grids(200), 64), 5000), 0),
      limited(zipf("bytes_spare", like(grids(200), 64), 5000), 50),
      in_turn("two_in_turn", like(grids(200), 2), 2000),
      in_turn("two_in_turn_small", like(grids(8), 2), 2000),
      in_turn("nine_in_turn", like(grids(200), 9), 2000),
      in_turn("nine_in_turn_small", like(grids(8), 9), 2000),
      in_turn("nine_no_siblings", unlike(grids(200), 9), 2000),
      in_turn("all_in_turn", like(grids(200), 64), 5000),
      drift("drift", grids(200), 10'000, 100),
      drift("drift_small", grids(8), 10'000, 100),
      retire("retire", other_kernels(200), 5000),
      retire("retire_small", grids(8), 5000),
      one_time("one_time", grids(200), 5000),
      one_time("one_time_small", grids(8), 5000),
      phases("phases", grids(200), 5000),
      phases("phases_kernels", other_kernels(200), 5000),
      phases("phases_small", grids(8), 5000),
      phases("phases_arguments", few_arguments(200), 5000),
      zipf("zipf_mixed_arguments", mixed(few_arguments(200), 64), 5000),
      zipf("zipf_mixed_kernels", mixed(other_kernels(200), 64), 5000),
      once("once", grids(200), 500),
      decode("decode", 18),
      decode("decode_slots", 100),
  };
}

}  // namespace graphcache::sim
