#include "ways.h"

#include <absl/strings/str_format.h>

#include "../support.h"
#include "graphcache/graphcache.h"

namespace demo {
namespace {

class Raw : public Launcher {
 public:
  using Launcher::Launcher;
  ~Raw() override {
    DEMO_CUDA(cudaGraphExecDestroy(exec_));
    DEMO_CUDA(cudaGraphDestroy(graph_));
  }
  void first_run() override {
    make();
    time(kFirstLaunch, [this] { run(); });
  }
  void warm() override {
    make();
    time(kUpload, [this] { DEMO_CUDA(cudaGraphUpload(exec_, work_.stream())); });
  }
  void run() override { DEMO_CUDA(cudaGraphLaunch(exec_, work_.stream())); }

  std::optional<std::uint64_t> cuda_calls() const override { return raw_calls(); }
  std::string defect() const override {
    std::size_t nodes = 0, roots = 0;
    DEMO_CUDA(cudaGraphGetNodes(graph_, nullptr, &nodes));
    DEMO_CUDA(cudaGraphGetRootNodes(graph_, nullptr, &roots));
    const Topology& topology = work_.topology();
    if (nodes == static_cast<std::size_t>(topology.nodes()) && roots == static_cast<std::size_t>(topology.chains)) {
      return "";
    }
    return absl::StrFormat("%d nodes and %d roots were captured, not %d and %d", nodes, roots, topology.nodes(),
                           topology.chains);
  }

 private:
  void make() {
    time(kCapture, [this] {
      DEMO_CUDA(cudaStreamBeginCapture(work_.stream(), cudaStreamCaptureModeThreadLocal));
      work_.enqueue();
      DEMO_CUDA(cudaStreamEndCapture(work_.stream(), &graph_));
    });
    time(kInstantiate, [this] { DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0)); });
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

class Cached : public Launcher {
 public:
  using Launcher::Launcher;
  void first_run() override { run(graphcache::Outcome::kInstantiated); }
  void warm() override { check(cache_.warm(key_, work_.stream(), body_)); }
  void run() override { run(graphcache::Outcome::kReplayed); }

  std::optional<std::uint64_t> cuda_calls() const override { return runtime_calls(); }
  std::string defect() const override {
    const std::vector<graphcache::EntryInfo> entries = cache_.entries();
    const int nodes = entries.size() == 1 ? static_cast<int>(entries[0].nodes) : 0;
    if (nodes == work_.topology().nodes()) return defect_;
    return absl::StrFormat("%d entries, the graph of %d nodes, not %d", entries.size(), nodes,
                           work_.topology().nodes());
  }

 private:
  void run(graphcache::Outcome wanted) {
    const auto outcome = cache_.run(key_, work_.stream(), body_);
    check(outcome.status());
    if (*outcome == wanted) return;
    defect_ = absl::StrFormat("a run was %s, not %s", graphcache::to_string(*outcome), graphcache::to_string(wanted));
  }

  // One object for runs and warm-up, because a key belongs to one place of the program.
  const std::function<void(cudaStream_t)> body_ = [this](cudaStream_t) { work_.enqueue(); };
  const graphcache::Key key_ = graphcache::key("launch_scaling", work_.topology().name);
  graphcache::Cache cache_;
  std::string defect_;
};

template <class T>
Kind kind(const char* name) {
  return {name,
          [](const Work& work, Times* times) -> std::unique_ptr<Launcher> { return std::make_unique<T>(work, times); }};
}

}  // namespace

std::vector<Kind> kinds() { return {kind<Raw>("raw"), kind<Cached>("cache")}; }

}  // namespace demo
