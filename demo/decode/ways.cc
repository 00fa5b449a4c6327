#include "ways.h"

#include <map>

#include "graphcache/graphcache.h"

namespace demo {
namespace {

class Eager : public Decoder {
 public:
  using Decoder::Decoder;
  void run(int index, const Step& step) override { worker(index).enqueue(step); }
};

// The code that a program needs without the library: a captured graph with the nodes that change, and the executable
// made from it.
class Graph {
 public:
  Graph(const Worker& worker, const Step& step) : worker_(worker), held_(step) {
    const cudaStream_t stream = worker.stream();
    DEMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    worker.copy_rows(step);
    rows_node_ = last_captured_node(stream);
    worker.forward(step, [&](int layer) {
      worker.attend(step, layer);
      attention_nodes_.push_back(last_captured_node(stream));
    });
    worker.copy_choices(step);
    choices_node_ = last_captured_node(stream);
    DEMO_CUDA(cudaStreamEndCapture(stream, &graph_));
    DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
    DEMO_CUDA(cudaGraphUpload(exec_, stream));
  }
  ~Graph() {
    DEMO_CUDA(cudaGraphExecDestroy(exec_));
    DEMO_CUDA(cudaGraphDestroy(graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void run(const Step& step) {
    if (step.rows != held_.rows) {
      DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, rows_node_, worker_.device_rows(), step.rows,
                                                   worker_.rows_bytes(step.bucket), cudaMemcpyHostToDevice));
    }
    if (step.choices != held_.choices) {
      DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, choices_node_, step.choices, worker_.device_choices(),
                                                   worker_.choices_bytes(step.bucket), cudaMemcpyDeviceToHost));
    }
    if (step.splits != held_.splits) set_grids(step);
    held_ = step;
    DEMO_CUDA(cudaGraphLaunch(exec_, worker_.stream()));
  }

 private:
  void set_grids(const Step& step) {
    for (int layer = 0; layer < worker_.shape().layers; ++layer) {
      Attention attention = worker_.attention(layer);
      void* arguments[] = {&attention};
      cudaKernelNodeParams params{};
      params.func = reinterpret_cast<void*>(&attend);
      params.gridDim = worker_.attention_grid(step);
      params.blockDim = Worker::attention_block();
      params.kernelParams = arguments;
      DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, attention_nodes_[size(layer)], &params));
    }
  }

  const Worker& worker_;
  Step held_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t rows_node_ = nullptr;
  cudaGraphNode_t choices_node_ = nullptr;
  std::vector<cudaGraphNode_t> attention_nodes_;
};

class GraphPerBucket : public Decoder {
 public:
  GraphPerBucket(const Workers& workers, const graphcache::Buckets& buckets)
      : Decoder(workers), buckets_(buckets), graphs_(workers.size()) {}

  void prepare(int index) override {
    for (const std::int64_t size_of_bucket : buckets_) {
      const int bucket = static_cast<int>(size_of_bucket);
      graphs_[size(index)].try_emplace(bucket, worker(index), worker(index).any_step(bucket));
    }
  }
  void run(int index, const Step& step) override { graphs_[size(index)].at(step.bucket).run(step); }
  Counters counters() const override {
    const std::uint64_t count = graphs_.size() * buckets_.size();
    return {count, count, 0, count};
  }

 private:
  const graphcache::Buckets& buckets_;
  std::vector<std::map<int, Graph>> graphs_;  // by worker and bucket
};

class Cached : public Decoder {
 public:
  Cached(const Workers& workers, const graphcache::Options& options) : Decoder(workers), cache_(options) {}

  Counters counters() const override {
    const graphcache::Stats stats = cache_.stats();
    return {stats.captures, stats.instantiations, stats.updates + stats.set_switches, stats.live_executables};
  }
  std::optional<graphcache::Stats> stats() const override { return cache_.stats(); }

 protected:
  graphcache::Cache cache_;
};

class CacheRun : public Cached {
 public:
  using Cached::Cached;
  void run(int index, const Step& step) override {
    const Worker& worker = this->worker(index);
    check(cache_
              .run(graphcache::key("decode", index, step.bucket), worker.stream(),
                   graphcache::params(step.rows, step.choices, worker.attention_grid(step)),
                   [&](graphcache::Recorder& rec, graphcache::Slot<const Row*> rows, graphcache::Slot<Choice*> choices,
                       graphcache::Slot<dim3> grid) {
                     rec.memcpy(worker.device_rows(), rows, worker.rows_bytes(step.bucket), cudaMemcpyHostToDevice);
                     worker.forward(step, [&](int layer) {
                       rec.launch(attend, {grid, Worker::attention_block()}, worker.attention(layer));
                     });
                     rec.memcpy(choices, worker.device_choices(), worker.choices_bytes(step.bucket),
                                cudaMemcpyDeviceToHost);
                   })
              .status());
  }
};

// The same function as without a graph. The splits are an integer, so they belong to the key.
class CacheRunValues : public Cached {
 public:
  using Cached::Cached;
  void run(int index, const Step& step) override {
    const Worker& worker = this->worker(index);
    check(cache_
              .run(graphcache::key("decode", index, step.bucket, step.splits), worker.stream(),
                   graphcache::values(step.rows, step.choices),
                   [&](cudaStream_t, const Row* rows, Choice* choices) {
                     worker.enqueue({step.bucket, step.splits, rows, choices});
                   })
              .status());
  }
};

}  // namespace

std::vector<Kind> kinds(const graphcache::Buckets& buckets, int executables) {
  using graphcache::Share;
  const auto options = [&](Share share) {
    graphcache::Options options;
    options.max_executables = executables;
    options.share = share;
    return options;
  };
  const auto cache = [&](const char* name, Share share) {
    return Kind{name,
                [with = options(share)](const Workers& workers) { return std::make_unique<CacheRun>(workers, with); }};
  };
  return {
      {"eager", [](const Workers& workers) { return std::make_unique<Eager>(workers); }},
      {"graph_per_bucket",
       [&buckets](const Workers& workers) { return std::make_unique<GraphPerBucket>(workers, buckets); }},
      cache("cache_run", Share::kNever),  // four streams keep the device busy
      {"cache_run_values", [with = options(Share::kNever)](
                               const Workers& workers) { return std::make_unique<CacheRunValues>(workers, with); }},
      cache("cache_run_when_full", Share::kWhenFull),
      cache("cache_run_always", Share::kAlways),
  };
}

}  // namespace demo
