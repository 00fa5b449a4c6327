// The dynamic-parameters program: a loop whose every iteration launches `nodes` short kernels, `dynamic` of which take
// a float that changes from iteration to iteration. Four ways to run it:
//
//   no_graph          every kernel launched by itself
//   recapture_update  capture the iteration again, update one executable from it, launch
//   combined          by hand on the raw API: captured once, the dynamic nodes added to the capture by hand and their
//                     parameters set in the executable before each launch (the approach of NVIDIA's article
//                     "Constructing CUDA Graphs with Dynamic Parameters")
//   cache_run         graphcache
//   cache_run_device  graphcache, the values written by the device (Patching::kDeviceUpdated)
//
// Two times of each way. Total: all iterations enqueued one after another, until the GPU is done. Host: the host's part
// of an iteration, measured over batches of eight with the GPU idle at their start, because in the long run a full
// launch queue makes the host wait for the GPU whatever it does itself.
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"

ABSL_FLAG(int, nodes, 8, "kernels per iteration");
ABSL_FLAG(int, dynamic, -1, "how many of them take the changing float; by default half");
ABSL_FLAG(int, iterations, 40000, "iterations");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kCount = 32;  // Elements of the buffer: one block of one warp.
constexpr int kRepetitions = 5;
constexpr int kBatch = 8;      // Iterations of one host timing,
constexpr int kBatches = 200;  // and how many of these.

struct Loop {
  int nodes;
  int dynamic;
  std::uint32_t* state;
  cudaStream_t stream;

  // The dynamic nodes come last.
  bool is_dynamic(int node) const { return node >= nodes - dynamic; }
  // The value of a node that does not change.
  static float fixed(int node) { return 1.0f + static_cast<float>(node); }
  static float changing(int iteration) { return 1.0f + 0.001f * static_cast<float>(iteration); }
  static std::uint32_t salt(int node) { return 2u * static_cast<std::uint32_t>(node) + 1u; }

  void launch(int node, float value) const {
    std::uint32_t* target = state;
    int count = kCount;
    std::uint32_t with = salt(node);
    void* arguments[] = {&target, &count, &value, &with};
    DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&mix), dim3(1), dim3(kCount), arguments, 0, stream));
  }
  void launch_all(int iteration) const {
    for (int node = 0; node < nodes; ++node) launch(node, is_dynamic(node) ? changing(iteration) : fixed(node));
  }
};

// A way is an object that does one iteration; it is made anew for each repetition.
class Iteration {
 public:
  explicit Iteration(const Loop& loop) : loop_(loop) {}
  virtual ~Iteration() = default;
  virtual void run(int iteration) = 0;
  // CUDA calls that the way has made so far.
  virtual std::uint64_t cuda_calls() const { return raw_calls(); }
  virtual std::vector<std::pair<std::string, std::uint64_t>> outcomes() const { return {}; }

 protected:
  const Loop& loop_;
};

class NoGraph : public Iteration {
 public:
  using Iteration::Iteration;
  void run(int iteration) override { loop_.launch_all(iteration); }
};

class RecaptureUpdate : public Iteration {
 public:
  using Iteration::Iteration;
  ~RecaptureUpdate() override { DEMO_CUDA(cudaGraphExecDestroy(exec_)); }
  void run(int iteration) override {
    cudaGraph_t graph = nullptr;
    DEMO_CUDA(cudaStreamBeginCapture(loop_.stream, cudaStreamCaptureModeThreadLocal));
    loop_.launch_all(iteration);
    DEMO_CUDA(cudaStreamEndCapture(loop_.stream, &graph));
    if (exec_ == nullptr) {
      DEMO_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    } else {
      cudaGraphExecUpdateResultInfo info;
      DEMO_CUDA(cudaGraphExecUpdate(exec_, graph, &info));
    }
    DEMO_CUDA(cudaGraphDestroy(graph));
    DEMO_CUDA(cudaGraphLaunch(exec_, loop_.stream));
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class Combined : public Iteration {
 public:
  using Iteration::Iteration;
  ~Combined() override {
    DEMO_CUDA(cudaGraphExecDestroy(exec_));
    DEMO_CUDA(cudaGraphDestroy(graph_));
  }
  void run(int iteration) override {
    value_ = Loop::changing(iteration);
    if (exec_ == nullptr) {
      capture();
    } else {
      for (const Node& node : nodes_) set(node);
    }
    DEMO_CUDA(cudaGraphLaunch(exec_, loop_.stream));
  }

 private:
  struct Node {
    cudaGraphNode_t handle;
    std::uint32_t salt;
  };

  cudaKernelNodeParams params() {
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(&mix);
    params.gridDim = dim3(1);
    params.blockDim = dim3(kCount);
    params.kernelParams = arguments_;
    return params;
  }
  void set(const Node& node) {
    salt_ = node.salt;
    const cudaKernelNodeParams with = params();
    DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, node.handle, &with));
  }
  void capture() {
    DEMO_CUDA(cudaStreamBeginCapture(loop_.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < loop_.nodes; ++i) {
      if (loop_.is_dynamic(i)) {
        add_by_hand(i);
      } else {
        loop_.launch(i, Loop::fixed(i));
      }
    }
    DEMO_CUDA(cudaStreamEndCapture(loop_.stream, &graph_));
    DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void add_by_hand(int i) {
    cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t* dependencies;
    std::size_t count;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData* edges;
    DEMO_CUDA(cudaStreamGetCaptureInfo(loop_.stream, &status, &id, &graph, &dependencies, &edges, &count));
#else
    DEMO_CUDA(cudaStreamGetCaptureInfo_v2(loop_.stream, &status, &id, &graph, &dependencies, &count));
#endif
    Node node{nullptr, Loop::salt(i)};
    salt_ = node.salt;
    const cudaKernelNodeParams with = params();
    DEMO_CUDA(cudaGraphAddKernelNode(&node.handle, graph, dependencies, count, &with));
#if CUDART_VERSION >= 13000
    DEMO_CUDA(
        cudaStreamUpdateCaptureDependencies(loop_.stream, &node.handle, nullptr, 1, cudaStreamSetCaptureDependencies));
#else
    DEMO_CUDA(cudaStreamUpdateCaptureDependencies(loop_.stream, &node.handle, 1, cudaStreamSetCaptureDependencies));
#endif
    nodes_.push_back(node);
  }

  std::vector<Node> nodes_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::uint32_t* state_ = loop_.state;
  int count_ = kCount;
  float value_ = 0;
  std::uint32_t salt_ = 0;
  void* arguments_[4] = {&state_, &count_, &value_, &salt_};
};

class CacheRun : public Iteration {
 public:
  explicit CacheRun(const Loop& loop) : CacheRun(loop, graphcache::Patching::kPerNode) {}
  void run(int iteration) override {
    const auto outcome =
        cache_.run(key_, loop_.stream, graphcache::params(Loop::changing(iteration)),
                   [this](graphcache::Recorder& rec, graphcache::Slot<float> value) {
                     for (int i = 0; i < loop_.nodes; ++i) {
                       if (loop_.is_dynamic(i)) {
                         rec.launch(mix, {1, kCount}, loop_.state, kCount, value, Loop::salt(i));
                       } else {
                         rec.launch(mix, {1, kCount}, loop_.state, kCount, Loop::fixed(i), Loop::salt(i));
                       }
                     }
                   });
    if (!outcome.ok()) {
      absl::FPrintF(stderr, "%s\n", outcome.status().ToString());
      std::exit(1);
    }
  }
  // On a hit: one launch, and one call for each patched node.
  std::uint64_t cuda_calls() const override {
    const graphcache::Stats stats = cache_.stats();
    return stats.hits() + stats.patched_nodes;
  }
  std::vector<std::pair<std::string, std::uint64_t>> outcomes() const override {
    return outcome_counts(cache_.stats());
  }

 protected:
  CacheRun(const Loop& loop, graphcache::Patching patching) : Iteration(loop), cache_(with(patching)) {}
  graphcache::Cache cache_;

 private:
  static graphcache::Options with(graphcache::Patching patching) {
    graphcache::Options options;
    options.patching = patching;
    return options;
  }
  const graphcache::Key key_ = graphcache::key("dynamic_params", loop_.nodes, loop_.dynamic);
};

class CacheRunDevice : public CacheRun {
 public:
  explicit CacheRunDevice(const Loop& loop) : CacheRun(loop, graphcache::Patching::kDeviceUpdated) {}
  // On a hit: one launch, and one call for all nodes.
  std::uint64_t cuda_calls() const override {
    const graphcache::Stats stats = cache_.stats();
    return stats.hits() + (loop_.dynamic == 0 ? 0 : stats.outcome(graphcache::Outcome::kPatched));
  }
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Iteration>(const Loop&)> make;
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Loop& loop) -> std::unique_ptr<Iteration> { return std::make_unique<T>(loop); }};
}

// What `iterations` leave in each element.
std::uint32_t reference(const Loop& loop, int iterations) {
  std::uint32_t state = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (int node = 0; node < loop.nodes; ++node) {
      const float value = loop.is_dynamic(node) ? Loop::changing(iteration) : Loop::fixed(node);
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

// One repetition of one way: the whole loop, then the host's part of it.
bool measure(const Kind& kind, const Loop& loop, int iterations, std::uint32_t after_all, std::uint32_t after_batches,
             Samples* samples, Way* way) {
  const std::size_t bytes = kCount * sizeof(std::uint32_t);
  DEMO_CUDA(cudaMemsetAsync(loop.state, 0, bytes, loop.stream));
  DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  auto iteration = kind.make(loop);
  samples->total_ms.push_back(microseconds([&] {
                                for (int i = 0; i < iterations; ++i) iteration->run(i);
                                DEMO_CUDA(cudaStreamSynchronize(loop.stream));
                              }) /
                              1000);
  way->outcomes = iteration->outcomes();
  bool equal = equals(loop, after_all, kind.name, "all iterations");

  DEMO_CUDA(cudaMemsetAsync(loop.state, 0, bytes, loop.stream));
  DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  std::uint64_t calls = 0;
  std::uint64_t counted = 0;  // By the runtime itself, where it counts.
  for (int batch = 0; batch < kBatches; ++batch) {
    const std::uint64_t before = iteration->cuda_calls();
    const std::uint64_t counted_before = runtime_calls().value_or(0);
    samples->host_us.push_back(microseconds([&] {
                                 for (int i = 0; i < kBatch; ++i) iteration->run(batch * kBatch + i);
                               }) /
                               kBatch);
    counted += runtime_calls().value_or(0) - counted_before;
    calls += iteration->cuda_calls() - before;
    DEMO_CUDA(cudaStreamSynchronize(loop.stream));
  }
  way->cuda_calls_per_iteration = static_cast<double>(calls) / (kBatches * kBatch);
  if (runtime_calls() && counted != calls) {
    absl::FPrintF(stderr, "%s: %d CUDA calls were made, %d reported\n", kind.name, counted, calls);
    equal = false;
  }
  return equals(loop, after_batches, kind.name, "batches") && equal;
}

int run() {
  Loop loop{absl::GetFlag(FLAGS_nodes), absl::GetFlag(FLAGS_dynamic), nullptr, nullptr};
  if (loop.dynamic < 0) loop.dynamic = loop.nodes / 2;
  const int iterations = absl::GetFlag(FLAGS_iterations);
  if (loop.nodes < 1 || loop.dynamic > loop.nodes || iterations < 1) {
    absl::FPrintF(stderr, "--nodes and --iterations must be at least 1, --dynamic at most --nodes\n");
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);
  Report report;
  report.demo = "dynamic_params";
  report.machine = announce();
  report.parameters = {{"nodes", loop.nodes}, {"dynamic", loop.dynamic}, {"iterations", iterations}};
  absl::PrintF("%d iterations of %d kernels, %d of them with a changing float\n", iterations, loop.nodes, loop.dynamic);

  void* state = nullptr;
  DEMO_CUDA(cudaMalloc(&state, kCount * sizeof(std::uint32_t)));
  loop.state = static_cast<std::uint32_t*>(state);
  DEMO_CUDA(cudaStreamCreateWithFlags(&loop.stream, cudaStreamNonBlocking));

  const std::vector<Kind> kinds = {kind<NoGraph>("no_graph"), kind<RecaptureUpdate>("recapture_update"),
                                   kind<Combined>("combined"), kind<CacheRun>("cache_run"),
                                   kind<CacheRunDevice>("cache_run_device")};
  const std::uint32_t after_all = reference(loop, iterations);
  const std::uint32_t after_batches = reference(loop, kBatches * kBatch);
  std::vector<Samples> samples(kinds.size());
  report.ways.resize(kinds.size());
  std::vector<std::size_t> order = {0, 1, 2, 3, 4};
  std::mt19937 random(1);
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      if (!measure(kinds[i], loop, iterations, after_all, after_batches, &samples[i], &report.ways[i]))
        report.equal = false;
    }
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    report.ways[i].name = kinds[i].name;
    report.ways[i].host_us = median(samples[i].host_us);
    report.ways[i].total_ms = median(samples[i].total_ms);
  }
  DEMO_CUDA(cudaStreamDestroy(loop.stream));
  DEMO_CUDA(cudaFree(state));

  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv, "The dynamic-parameters loop, run five ways and compared; see the top of the source.");
  return demo::run();
}
