#include "ways.h"

#include <optional>

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "step_graph.h"

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
  void run(const Step& step) override {
    if (graph_) {
      graph_->patch(step);
    } else {
      graph_.emplace(training_, step, training_.batch_bytes(), training_.loss(),
                     [this] { training_.forward_and_backward(training_.stream()); });
    }
    graph_->launch();
  }

 private:
  std::optional<StepGraph> graph_;
};

class Cached : public Trainer {
 public:
  using Trainer::Trainer;
  // One launch, and one call for each patched node.
  std::optional<std::uint64_t> cuda_calls() const override {
    const graphcache::Stats stats = cache_.stats();
    return stats.hits() + stats.patched_nodes;
  }
  std::uint64_t captures() const override { return cache_.stats().captures; }
  std::vector<std::pair<std::string, std::uint64_t>> outcomes() const override {
    return outcome_counts(cache_.stats());
  }

 protected:
  graphcache::Cache cache_;
  const graphcache::Key key_ = graphcache::key("train_step", training_.shape().batch, training_.shape().hidden);
};

class CacheRun : public Cached {
 public:
  using Cached::Cached;
  void run(const Step& step) override {
    check(cache_
              .run(key_, training_.stream(), graphcache::params(step.batch, step.rate, step.number, step.loss),
                   [this](graphcache::Recorder& rec, graphcache::Slot<const float*> batch, graphcache::Slot<float> rate,
                          graphcache::Slot<float> number, graphcache::Slot<float*> loss) {
                     const int count = training_.shape().all_parameters();
                     rec.memcpy(training_.batch(), batch, training_.batch_bytes(), cudaMemcpyHostToDevice);
                     training_.forward_and_backward(rec.stream());
                     rec.launch(adam, {grid(count), kThreads}, training_.parameters(), training_.mean(),
                                training_.square(), training_.gradient(), count, rate, number);
                     rec.memcpy(loss, training_.loss(), sizeof(float), cudaMemcpyDeviceToHost);
                   })
              .status());
  }
};

// The same function as in an eager step.
class CacheRunValues : public Cached {
 public:
  using Cached::Cached;
  // The cache also asks what kind of memory the pointers are of, so its number of calls is unknown.
  std::optional<std::uint64_t> cuda_calls() const override { return runtime_calls(); }
  void run(const Step& step) override {
    check(cache_
              .run(key_, training_.stream(), graphcache::values(step.batch, step.rate, step.number, step.loss),
                   [this](cudaStream_t stream, const float* batch, float rate, float number, float* loss) {
                     training_.enqueue(stream, batch, rate, number, loss);
                   })
              .status());
  }
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Training& training) -> std::unique_ptr<Trainer> { return std::make_unique<T>(training); }};
}

}  // namespace

std::optional<std::uint64_t> Trainer::cuda_calls() const { return raw_calls(); }

std::vector<Kind> kinds() {
  return {kind<EagerSync>("eager_sync"), kind<Eager>("eager"), kind<CapturedByHand>("captured_by_hand"),
          kind<CacheRun>("cache_run"), kind<CacheRunValues>("cache_run_values")};
}

}  // namespace demo
