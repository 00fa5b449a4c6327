// A hit with an input at a new address: cache.run and the mechanisms that programs use today to keep CUDA graphs, on a
// GPU: peers [--json FILE] [ROUNDS].
//
//   recapture     the work is captured at each run, and updates one executable for all sizes (cudaGraphExecUpdate)
//   static_input  an executable for each size, which reads a buffer of its own: each run copies its input there
//   patch         an executable for each size; the node that reads the input is set by cudaGraphExecKernelNodeSetParams
//   bare          an executable for each size, launched as it is: what no way can go below, though its input stays
//
// run is cache.run with the default options. run_own has Options::share = false: as many executables as the other ways.
//
// Eight sizes in turn. The first kernel reads the input, the last one adds to a sum, which checks each way. `host` is
// the host time of a run, in batches of eight with the GPU idle at their start; `total` is the time of a run until the
// GPU is done, over 64 runs. The ways take turns; medians of the rounds.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

namespace test = graphcache::test;

constexpr int kSizes = 8, kStep = 512, kMost = kSizes * kStep, kInputs = 3, kBlock = 256, kRunsInTotal = 64;

float* floats(float value) {
  float* memory = nullptr;
  const std::vector<float> values(kMost, value);
  CHECK(cudaMalloc(reinterpret_cast<void**>(&memory), kMost * sizeof(float)));
  CHECK(cudaMemcpy(memory, values.data(), kMost * sizeof(float), cudaMemcpyHostToDevice));
  return memory;
}

// The memory of one way.
struct Work {
  int nodes;
  cudaStream_t stream = bench::new_stream();
  float* between = floats(0);
  float* sum = floats(0);
  double expected = 0;  // value of the first element of the sum, which every size reaches

  dim3 grid(int n) const { return {static_cast<unsigned>(n / kBlock)}; }
  cudaError_t enqueue_first(cudaStream_t on, int n, const float* in) const {
    return test::launch(test::scale, grid(n), kBlock, on, between, in, n, 2.0f);
  }
  cudaError_t enqueue_rest(cudaStream_t on, int n) const {
    for (int i = 2; i < nodes; ++i) {
      if (const cudaError_t error = test::launch(test::add, grid(n), kBlock, on, between, n, 1.0f);
          error != cudaSuccess) {
        return error;
      }
    }
    return test::launch(test::axpy, grid(n), kBlock, on, sum, between, n, 1.0f);
  }
  cudaGraph_t capture(int n, const float* in) const {
    return bench::captured(stream, [&](cudaStream_t on) {
      const cudaError_t error = enqueue_first(on, n, in);
      return error == cudaSuccess ? enqueue_rest(on, n) : error;
    });
  }
};

class Way {
 public:
  explicit Way(int nodes) : work_{nodes} {}
  virtual ~Way() = default;
  virtual void run(int n, const float* in) = 0;
  Work& work() { return work_; }

 protected:
  Work work_;
};

class Recapture : public Way {
 public:
  using Way::Way;
  void run(int n, const float* in) override {
    cudaGraph_t graph = work_.capture(n, in);
    cudaGraphExecUpdateResultInfo info;
    if (exec_ == nullptr) {
      CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    } else {
      CHECK(cudaGraphExecUpdate(exec_, graph, &info));
    }
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphLaunch(exec_, work_.stream));
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class StaticInput : public Way {
 public:
  using Way::Way;
  void run(int n, const float* in) override {
    const auto [found, is_new] = graphs_.try_emplace(n);
    Graph& graph = found->second;
    if (is_new) {
      graph.input = floats(0);
      cudaGraph_t captured = work_.capture(n, graph.input);
      CHECK(cudaGraphInstantiate(&graph.exec, captured, 0));
      CHECK(cudaGraphDestroy(captured));
    }
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
    CHECK(cudaMemcpyAsync(graph.input, in, bytes, cudaMemcpyDeviceToDevice, work_.stream));
    CHECK(cudaGraphLaunch(graph.exec, work_.stream));
  }

 private:
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    float* input = nullptr;
  };
  std::unordered_map<int, Graph> graphs_;
};

// Also used for `bare`, which does not patch.
class Patch : public Way {
 public:
  Patch(int nodes, bool patches) : Way(nodes), patches_(patches) {}
  void run(int n, const float* in) override {
    const auto [found, is_new] = graphs_.try_emplace(n);
    Graph& graph = found->second;
    if (is_new) {
      graph.captured = work_.capture(n, in);
      std::size_t one = 1;
      CHECK(cudaGraphGetRootNodes(graph.captured, &graph.first, &one));
      CHECK(cudaGraphKernelNodeGetParams(graph.first, &graph.params));
      CHECK(cudaGraphInstantiate(&graph.exec, graph.captured, 0));
    } else if (patches_) {
      float factor = 2.0f;
      void* arguments[] = {&work_.between, &in, &n, &factor};
      cudaKernelNodeParams params = graph.params;
      params.kernelParams = arguments;
      CHECK(cudaGraphExecKernelNodeSetParams(graph.exec, graph.first, &params));
    }
    CHECK(cudaGraphLaunch(graph.exec, work_.stream));
  }

 private:
  struct Graph {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaGraphNode_t first = nullptr;
    cudaKernelNodeParams params = {};
  };
  bool patches_;
  std::unordered_map<int, Graph> graphs_;
};

class Cached : public Way {
 public:
  Cached(int nodes, bool shares) : Way(nodes), cache_(options(shares)) {}
  void run(int n, const float* in) override {
    const auto done = cache_.run(graphcache::key("peers", n), work_.stream, graphcache::params(in),
                                 [&](graphcache::Recorder& rec, graphcache::Slot<const float*> input) {
                                   rec.launch(test::scale, {work_.grid(n), kBlock}, work_.between, input, n, 2.0f);
                                   return work_.enqueue_rest(rec.stream(), n);
                                 });
    if (done.ok()) return;
    std::fprintf(stderr, "%s\n", done.status().ToString().c_str());
    std::exit(1);
  }

 private:
  static graphcache::Options options(bool shares) {
    graphcache::Options options;
    options.share = shares ? graphcache::Share::kAlways : graphcache::Share::kNever;
    return options;
  }
  graphcache::Cache cache_;
};

void measure(bench::Report& report, int nodes, int rounds) {
  Recapture recapture(nodes);
  StaticInput static_input(nodes);
  Patch patch(nodes, true), bare(nodes, false);
  Cached run_default(nodes, true), run_own(nodes, false);
  struct Measured {
    const char* name;
    Way* way;
    std::vector<double> host = {}, total = {};
  } ways[] = {{"recapture", &recapture}, {"static_input", &static_input}, {"patch", &patch},
              {"bare", &bare},           {"run", &run_default},           {"run_own", &run_own}};
  constexpr std::size_t kPeers = 4;  // the first ones; the others are ours

  float* inputs[kInputs];
  for (int i = 0; i < kInputs; ++i) inputs[i] = floats(static_cast<float>(i));
  const auto run_once = [&](Measured& measured, int i) {
    const int input = i % kInputs;
    measured.way->run((i % kSizes + 1) * kStep, inputs[input]);
    measured.way->work().expected += 2 * input + nodes - 2;
  };
  for (int round = -8; round < rounds; ++round) {  // negative rounds are a warm-up
    for (Measured& measured : ways) {
      cudaStream_t stream = measured.way->work().stream;
      const double host = bench::nanoseconds([&] {
        for (int i = 0; i < kSizes; ++i) run_once(measured, round + 8 + i);
      });
      CHECK(cudaStreamSynchronize(stream));
      const double total = bench::nanoseconds([&] {
        for (int i = 0; i < kRunsInTotal; ++i) run_once(measured, round + 8 + i);
        CHECK(cudaStreamSynchronize(stream));
      });
      if (round < 0) continue;
      measured.host.push_back(host / kSizes);
      measured.total.push_back(total / kRunsInTotal);
    }
  }
  for (Measured& measured : ways) {
    if (measured.way == &bare) continue;  // its input is the first one
    float sum = 0;
    CHECK(cudaMemcpy(&sum, measured.way->work().sum, sizeof(sum), cudaMemcpyDeviceToHost));
    if (sum == measured.way->work().expected) continue;
    std::fprintf(stderr, "%s: the sum is %f, not %f\n", measured.name, sum, measured.way->work().expected);
    std::exit(1);
  }
  for (std::size_t i = kPeers; i < std::size(ways); ++i) {
    for (std::size_t j = 0; j < kPeers; ++j) {
      const Measured &ours = ways[i], &peer = ways[j];
      for (const bool host : {true, false}) {
        report.add({"peers",
                    {{"way", ours.name}, {"nodes", nodes}, {"time", host ? "host" : "total"}, {"peer", peer.name}},
                    "ns",
                    bench::median(host ? ours.host : ours.total),
                    peer.name,
                    bench::median(host ? peer.host : peer.total)});
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 60);
  for (const int nodes : {20, 200}) measure(report, nodes, rounds);
  return report.write();
}
