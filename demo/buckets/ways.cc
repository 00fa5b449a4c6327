#include "ways.h"

#include <algorithm>
#include <list>

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "raw_graph.h"

namespace demo {
namespace {

// As in the cache's estimate (lib/graph/template.h).
constexpr std::uint64_t kBytesPerExecutable = 114000;
constexpr std::uint64_t kBytesPerNode = 2600;

// A way without the library, which counts its own calls.
class Raw : public Iteration {
 public:
  using Iteration::Iteration;
  Counters counters() const override {
    Counters counters = counters_;
    counters.device_bytes =
        counters.live_executables * (kBytesPerExecutable + static_cast<std::uint64_t>(loop_.nodes) * kBytesPerNode);
    return counters;
  }

 protected:
  Counters counters_;
};

class NoGraph : public Raw {
 public:
  using Raw::Raw;
  void run(const Request& request) override { loop_.launch_all(request); }
};

// A bucket's executable, and the template that it was instantiated from.
struct Instance {
  Instance(const Loop& loop, const Request& request)
      : bucket(request.bucket), base(loop, request), executable(loop, base) {}
  int bucket;
  Template base;
  Executable executable;
};

class PlainLru : public Raw {
 public:
  PlainLru(const Loop& loop, int limit) : Raw(loop), limit_(static_cast<std::size_t>(limit)) {}
  void run(const Request& request) override {
    const auto found = std::find_if(instances_.begin(), instances_.end(),
                                    [&](const Instance& instance) { return instance.bucket == request.bucket; });
    if (found != instances_.end()) {
      instances_.splice(instances_.begin(), instances_, found);
      instances_.front().executable.patch(request);
    } else {
      if (instances_.size() == limit_) instances_.pop_back();
      instances_.emplace_front(loop_, request);
      ++counters_.captures;
      ++counters_.instantiations;
      counters_.live_executables = instances_.size();
    }
    instances_.front().executable.launch();
  }

 private:
  const std::size_t limit_;
  std::list<Instance> instances_;  // most recently used first
};

class Unlimited : public Raw {
 public:
  explicit Unlimited(const Loop& loop) : Raw(loop), instances_(loop.buckets.size()) {}
  void run(const Request& request) override {
    std::unique_ptr<Instance>& instance = instances_[static_cast<std::size_t>(request.bucket)];
    if (instance != nullptr) {
      instance->executable.patch(request);
    } else {
      instance = std::make_unique<Instance>(loop_, request);
      ++counters_.captures;
      ++counters_.instantiations;
      ++counters_.live_executables;
    }
    instance->executable.launch();
  }

 private:
  std::vector<std::unique_ptr<Instance>> instances_;  // by bucket
};

class RecaptureUpdate : public Raw {
 public:
  using Raw::Raw;
  ~RecaptureUpdate() override {
    if (exec_ != nullptr) DEMO_CUDA(cudaGraphExecDestroy(exec_));
  }
  void run(const Request& request) override {
    cudaGraph_t graph = nullptr;
    DEMO_CUDA(cudaStreamBeginCapture(loop_.stream, cudaStreamCaptureModeThreadLocal));
    loop_.launch_all(request);
    DEMO_CUDA(cudaStreamEndCapture(loop_.stream, &graph));
    ++counters_.captures;
    if (exec_ != nullptr && updated(graph)) {
      ++counters_.updates;
    } else {
      if (exec_ != nullptr) DEMO_CUDA(cudaGraphExecDestroy(exec_));
      DEMO_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
      ++counters_.instantiations;
      counters_.live_executables = 1;
    }
    DEMO_CUDA(cudaGraphDestroy(graph));
    DEMO_CUDA(cudaGraphLaunch(exec_, loop_.stream));
  }

 private:
  // Kernels that cuBLAS chooses may be impossible to exchange in an update.
  bool updated(cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo info;
    const cudaError_t error = cudaGraphExecUpdate(exec_, graph, &info);
    const bool refused = error == cudaErrorGraphExecUpdateFailure;
    check(refused ? cudaSuccess : error, "cudaGraphExecUpdate");
    if (refused) cudaGetLastError();
    return !refused;
  }

  cudaGraphExec_t exec_ = nullptr;
};

class CacheRun : public Iteration {
 public:
  CacheRun(const Loop& loop, const graphcache::Options& options) : Iteration(loop), cache_(options) {}

  void run(const Request& request) override {
    const auto outcome = cache_.run(graphcache::key("decode", request.bucket), loop_.stream,
                                    graphcache::params(request.step, request.value),
                                    [&](graphcache::Recorder& rec, graphcache::Slot<std::uint32_t> step,
                                        graphcache::Slot<float> value) { record(request, rec, step, value); });
    check(outcome.status());
  }
  Counters counters() const override {
    const graphcache::Stats stats = cache_.stats();
    return {stats.captures, stats.instantiations, stats.updates, stats.live_executables, stats.estimated_device_bytes};
  }
  std::optional<std::uint64_t> cuda_calls() const override { return runtime_calls(); }
  const graphcache::Cache* cache() const override { return &cache_; }

 private:
  void record(const Request& request, graphcache::Recorder& rec, graphcache::Slot<std::uint32_t> step,
              graphcache::Slot<float> value) const {
    const Bucket& bucket = loop_.bucket(request);
    const graphcache::LaunchConfig shape{dim3(static_cast<unsigned>(bucket.blocks)), dim3(kThreads)};
    const int last = loop_.nodes - 1;
    rec.launch(mix, shape, loop_.state, loop_.count, step, Loop::fixed(0), bucket.salt(0));
    for (int node = 1; node < last; ++node) {
      if (loop_.work(node) == Loop::Work::kMix) {
        rec.launch(mix, shape, loop_.state, loop_.count, 0u, Loop::fixed(node), bucket.salt(node));
      } else {
        loop_.enqueue(request, node);  // as it is, because it has no slots
      }
    }
    rec.launch(mix, shape, loop_.state, loop_.count, 0u, value, bucket.salt(last));
  }

  graphcache::Cache cache_;
};

}  // namespace

// The number of calls that cuBLAS makes is unknown.
std::optional<std::uint64_t> Iteration::cuda_calls() const {
  return loop_.products == nullptr ? std::optional(raw_calls()) : std::nullopt;
}

Kind cache_kind(const std::string& name, const graphcache::Options& options) {
  return {name, [=](const Loop& loop) { return std::make_unique<CacheRun>(loop, options); }};
}

std::vector<Kind> kinds(int executables, int buckets) {
  return {
      {"no_graph", [](const Loop& loop) { return std::make_unique<NoGraph>(loop); }},
      {"plain_lru", [=](const Loop& loop) { return std::make_unique<PlainLru>(loop, executables); }},
      {"recapture_update", [](const Loop& loop) { return std::make_unique<RecaptureUpdate>(loop); }},
      {"unlimited", [](const Loop& loop) { return std::make_unique<Unlimited>(loop); }},
      cache_kind("cache_run", {.max_executables = executables}),
      cache_kind("cache_run_always", {.max_executables = executables, .share = graphcache::Share::kAlways}),
      cache_kind("cache_run_unlimited", {.max_executables = buckets}),
  };
}

}  // namespace demo
