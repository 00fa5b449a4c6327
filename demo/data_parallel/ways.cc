#include "ways.h"

#include <map>

#include "../support.h"
#include "../train_step/kernels.h"
#include "../train_step/step_graph.h"
#include "graphcache/graphcache.h"

namespace demo {
namespace {

class Eager : public Trainer {
 public:
  using Trainer::Trainer;
  void run(const Step& step, int rows) override { replica_.enqueue(step, rows); }
};

class CapturedByHand : public Trainer {
 public:
  using Trainer::Trainer;
  void run(const Step& step, int rows) override {
    const auto [graph, is_new] = graphs_.try_emplace(rows, replica_.training(), step, Replica::batch_bytes(rows),
                                                     replica_.loss(), [&] { replica_.gradient(rows); });
    if (!is_new) graph->second.patch(step);
    graph->second.launch();
  }

 private:
  std::map<int, StepGraph> graphs_;
};

// FNV-1a of a sequence of numbers.
class Digest {
 public:
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ (number >> (8 * i) & 0xff)) * 0x100000001b3;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

class CacheRun : public Trainer {
 public:
  CacheRun(const Replica& replica, const graphcache::Options& options) : Trainer(replica), cache_(options) {}

  void run(const Step& step, int rows) override {
    const Training& training = replica_.training();
    const auto outcome =
        cache_.run(graphcache::key("data_parallel", rows), replica_.stream(),
                   graphcache::params(step.batch, step.rate, step.number, step.loss),
                   [&](graphcache::Recorder& rec, graphcache::Slot<const float*> batch, graphcache::Slot<float> rate,
                       graphcache::Slot<float> number, graphcache::Slot<float*> loss) {
                     const int count = training.shape().all_parameters();
                     rec.memcpy(training.batch(), batch, Replica::batch_bytes(rows), cudaMemcpyHostToDevice);
                     replica_.gradient(rows);  // includes the all-reduce
                     rec.launch(adam, {grid(count), kThreads}, training.parameters(), training.mean(),
                                training.square(), training.gradient(), count, rate, number);
                     rec.memcpy(loss, replica_.loss(), sizeof(float), cudaMemcpyDeviceToHost);
                   });
    check(outcome.status());
    outcomes_.add(static_cast<std::uint64_t>(*outcome));
  }

  // A hash of the outcomes in their order and of the counters.
  std::uint64_t decisions() const override {
    const graphcache::Stats stats = cache_.stats();
    Digest digest = outcomes_;
    for (const std::uint64_t count : stats.eager_reasons) digest.add(count);
    for (const std::uint64_t count :
         {stats.failed, stats.captures, stats.capture_failures, stats.instantiations, stats.updates, stats.set_switches,
          stats.patched_nodes, stats.evictions, stats.forgotten, stats.refused_updates, stats.refused_device_updates,
          stats.live_executables, stats.live_templates, stats.families, stats.estimated_device_bytes}) {
      digest.add(count);
    }
    return digest.value();
  }
  std::optional<graphcache::Stats> stats() const override { return cache_.stats(); }

 private:
  graphcache::Cache cache_;
  Digest outcomes_;
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Replica& replica) -> std::unique_ptr<Trainer> { return std::make_unique<T>(replica); }};
}

}  // namespace

std::vector<Kind> kinds(const graphcache::Options& options) {
  const auto cache_run = [](const graphcache::Options& of_cache) {
    return [of_cache](const Replica& replica) { return std::make_unique<CacheRun>(replica, of_cache); };
  };
  graphcache::Options own = options;
  own.share = graphcache::Share::kNever;
  return {kind<Eager>("eager"),
          kind<CapturedByHand>("captured_by_hand"),
          {"cache_run", cache_run(options)},
          {"cache_run_own", cache_run(own)}};
}

}  // namespace demo
