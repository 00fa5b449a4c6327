#include "ways.h"

#include <absl/strings/str_format.h>

#include <cstdlib>

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"

namespace demo {
namespace {

class Eager : public Trainer {
 public:
  using Trainer::Trainer;
  void run(const Step& step) override { training_.enqueue(step); }
};

class EagerSync : public Trainer {
 public:
  using Trainer::Trainer;
  void run(const Step& step) override {
    training_.enqueue(step);
    DEMO_CUDA(cudaStreamSynchronize(training_.stream()));
  }
};

class CapturedByHand : public Trainer {
 public:
  using Trainer::Trainer;
  ~CapturedByHand() override {
    DEMO_CUDA(cudaGraphExecDestroy(exec_));
    DEMO_CUDA(cudaGraphDestroy(graph_));
  }
  void run(const Step& step) override {
    if (exec_ == nullptr) {
      capture(step);
    } else {
      patch(step);
    }
    DEMO_CUDA(cudaGraphLaunch(exec_, training_.stream()));
  }

 private:
  void capture(const Step& step) {
    const cudaStream_t stream = training_.stream();
    DEMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    training_.copy_batch(step.batch);
    batch_node_ = last_captured_node(stream);
    training_.forward_and_backward(stream);
    training_.optimize(step.rate, step.number);
    adam_node_ = last_captured_node(stream);
    training_.copy_loss(step.loss);
    loss_node_ = last_captured_node(stream);
    DEMO_CUDA(cudaStreamEndCapture(stream, &graph_));
    DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void patch(const Step& step) {
    DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, batch_node_, training_.batch(), step.batch,
                                                 training_.batch_bytes(), cudaMemcpyHostToDevice));
    float* parameters = training_.parameters();
    float* mean = training_.mean();
    float* square = training_.square();
    const float* gradient = training_.gradient();
    int count = training_.shape().all_parameters();
    float rate = step.rate;
    int number = step.number;
    void* arguments[] = {&parameters, &mean, &square, &gradient, &count, &rate, &number};
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(&adam);
    params.gridDim = grid(count);
    params.blockDim = dim3(kThreads);
    params.kernelParams = arguments;
    DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, adam_node_, &params));
    DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, loss_node_, step.loss, training_.loss(), sizeof(float),
                                                 cudaMemcpyDeviceToHost));
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t batch_node_ = nullptr;
  cudaGraphNode_t adam_node_ = nullptr;
  cudaGraphNode_t loss_node_ = nullptr;
};

class CacheRun : public Trainer {
 public:
  using Trainer::Trainer;
  void run(const Step& step) override {
    const auto outcome =
        cache_.run(key_, training_.stream(), graphcache::params(step.batch, step.rate, step.number, step.loss),
                   [this](graphcache::Recorder& rec, graphcache::Slot<const float*> batch, graphcache::Slot<float> rate,
                          graphcache::Slot<int> number, graphcache::Slot<float*> loss) {
                     const int count = training_.shape().all_parameters();
                     rec.memcpy(training_.batch(), batch, training_.batch_bytes(), cudaMemcpyHostToDevice);
                     training_.forward_and_backward(rec.stream());
                     rec.launch(adam, {grid(count), kThreads}, training_.parameters(), training_.mean(),
                                training_.square(), training_.gradient(), count, rate, number);
                     rec.memcpy(loss, training_.loss(), sizeof(float), cudaMemcpyDeviceToHost);
                   });
    if (!outcome.ok()) {
      absl::FPrintF(stderr, "%s\n", outcome.status().ToString());
      std::exit(1);
    }
  }
  // One launch, and one call for each patched node.
  std::uint64_t cuda_calls() const override {
    const graphcache::Stats stats = cache_.stats();
    return stats.hits() + stats.patched_nodes;
  }
  std::vector<std::pair<std::string, std::uint64_t>> outcomes() const override {
    return outcome_counts(cache_.stats());
  }

 private:
  graphcache::Cache cache_;
  const graphcache::Key key_ = graphcache::key("train_step", training_.shape().batch, training_.shape().hidden);
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Training& training) -> std::unique_ptr<Trainer> { return std::make_unique<T>(training); }};
}

}  // namespace

std::uint64_t Trainer::cuda_calls() const { return raw_calls(); }

std::vector<Kind> kinds() {
  return {kind<EagerSync>("eager_sync"), kind<Eager>("eager"), kind<CapturedByHand>("captured_by_hand"),
          kind<CacheRun>("cache_run")};
}

}  // namespace demo
