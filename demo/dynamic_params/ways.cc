#include "ways.h"

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"

namespace demo {
namespace {

class NoGraph : public Iteration {
 public:
  using Iteration::Iteration;
  void run(int iteration) override { loop_.launch_all(loop_.stream, Loop::changing(iteration)); }
};

cudaGraph_t captured(const Loop& loop, int iteration) {
  cudaGraph_t graph = nullptr;
  DEMO_CUDA(cudaStreamBeginCapture(loop.stream, cudaStreamCaptureModeThreadLocal));
  loop.launch_all(loop.stream, Loop::changing(iteration));
  DEMO_CUDA(cudaStreamEndCapture(loop.stream, &graph));
  return graph;
}

class RecaptureUpdate : public Iteration {
 public:
  using Iteration::Iteration;
  ~RecaptureUpdate() override { DEMO_CUDA(cudaGraphExecDestroy(exec_)); }
  void run(int iteration) override {
    cudaGraph_t graph = captured(loop_, iteration);
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

class StaticReplay : public Iteration {
 public:
  using Iteration::Iteration;
  ~StaticReplay() override { DEMO_CUDA(cudaGraphExecDestroy(exec_)); }
  void run(int) override {
    if (exec_ == nullptr) {
      cudaGraph_t graph = captured(loop_, 0);
      DEMO_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
      DEMO_CUDA(cudaGraphDestroy(graph));
    }
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
        loop_.launch(loop_.stream, i, Loop::fixed(i));
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

class Cached : public Iteration {
 public:
  using Iteration::Iteration;
  // The cache chooses how to patch the values, so their number of calls is unknown.
  std::optional<std::uint64_t> cuda_calls() const override { return runtime_calls(); }
  std::vector<std::pair<std::string, std::uint64_t>> outcomes() const override {
    return outcome_counts(cache_.stats());
  }

 protected:
  graphcache::Cache cache_;
  const graphcache::Key key_ = graphcache::key("dynamic_params", loop_.nodes, loop_.dynamic);
};

class CacheRun : public Cached {
 public:
  using Cached::Cached;
  void run(int iteration) override {
    check(cache_
              .run(key_, loop_.stream, graphcache::params(Loop::changing(iteration)),
                   [this](graphcache::Recorder& rec, graphcache::Slot<float> value) { enqueue(rec, value); })
              .status());
  }

 protected:
  virtual void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> value) const {
    for (int i = 0; i < loop_.nodes; ++i) {
      if (loop_.is_dynamic(i)) {
        rec.launch(mix, {1, kCount}, loop_.state, kCount, value, Loop::salt(i));
      } else {
        rec.launch(mix, {1, kCount}, loop_.state, kCount, Loop::fixed(i), Loop::salt(i));
      }
    }
  }
};

// The same launches as without a graph.
class CacheRunValues : public Cached {
 public:
  using Cached::Cached;
  void run(int iteration) override {
    check(cache_
              .run(key_, loop_.stream, graphcache::values(Loop::changing(iteration)),
                   [this](cudaStream_t stream, float value) { loop_.launch_all(stream, value); })
              .status());
  }
};

// Only the node that writes the value is patched.
class CacheRunPointed : public CacheRun {
 public:
  using CacheRun::CacheRun;

 protected:
  void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> value) const override {
    rec.keep(pointed_);
    rec.write(pointed_.get(), value);
    for (int i = 0; i < loop_.nodes; ++i) {
      if (loop_.is_dynamic(i)) {
        rec.launch(mix_pointed, {1, kCount}, loop_.state, kCount, pointed_.get(), Loop::salt(i));
      } else {
        rec.launch(mix, {1, kCount}, loop_.state, kCount, Loop::fixed(i), Loop::salt(i));
      }
    }
  }

 private:
  static std::shared_ptr<float> device_float() {
    void* memory = nullptr;
    DEMO_CUDA(cudaMalloc(&memory, sizeof(float)));
    return {static_cast<float*>(memory), [](float* of) { DEMO_CUDA(cudaFree(of)); }};
  }
  const std::shared_ptr<float> pointed_ = device_float();
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Loop& loop) -> std::unique_ptr<Iteration> { return std::make_unique<T>(loop); }};
}

}  // namespace

void Loop::launch(cudaStream_t on, int node, float value) const {
  std::uint32_t* target = state;
  int count = kCount;
  std::uint32_t with = salt(node);
  void* arguments[] = {&target, &count, &value, &with};
  DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&mix), dim3(1), dim3(kCount), arguments, 0, on));
}

void Loop::launch_all(cudaStream_t on, float value) const {
  for (int node = 0; node < nodes; ++node) launch(on, node, is_dynamic(node) ? value : fixed(node));
}

std::optional<std::uint64_t> Iteration::cuda_calls() const { return raw_calls(); }

std::vector<Kind> kinds() {
  return {kind<NoGraph>("no_graph"), kind<RecaptureUpdate>("recapture_update"), kind<Combined>("combined"),
          kind<CacheRun>("cache_run"), kind<CacheRunValues>("cache_run_values")};
}

std::vector<Kind> sweep_kinds() {
  std::vector<Kind> all = kinds();
  all.push_back(kind<CacheRunPointed>("cache_run_pointed"));
  all.push_back(kind<StaticReplay>("static_replay"));
  all.back().follows = false;
  return all;
}

}  // namespace demo
