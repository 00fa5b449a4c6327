// A loop whose every iteration launches `nodes` short kernels, `dynamic` of which take a float that changes in every
// iteration. Five ways to run it:
//
//   no_graph          every kernel launched by itself
//   recapture_update  capture the iteration again, update one executable from it, launch
//   combined          by hand on the raw API: captured once, the dynamic nodes added to the capture by hand and their
//                     parameters set in the executable before each launch (the approach of NVIDIA's article
//                     "Constructing CUDA Graphs with Dynamic Parameters")
//   cache_run         graphcache, the float as a slot of the dynamic kernels
//   cache_run_values  graphcache, the float as a value: the launches of no_graph, in which the cache finds the float
//
// Two times of each way. Total: all iterations enqueued one after another, until the GPU is done. Host: the host time
// of an iteration, measured over batches of eight with the GPU idle at their start, because otherwise a full launch
// queue would make the host wait for the GPU.
//
// With --sweep: 8, 40, 200 and 1000 kernels, half of them dynamic, and fewer iterations for more kernels. Two more
// ways:
//
//   cache_run_pointed  graphcache, the value in device memory (Recorder::write), where the dynamic kernels read it
//   static_replay      captured once and launched, nothing ever patched: what any way pays for the launch
//
// A table for each size compares them with `combined` and, in host time, with `static_replay`.
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "../support.h"
#include "measure.h"
#include "ways.h"

ABSL_FLAG(int, nodes, 8, "kernels per iteration");
ABSL_FLAG(int, dynamic, -1, "how many of them take the changing float; by default half");
ABSL_FLAG(std::optional<int>, iterations, std::nullopt,
          "iterations, by default 40000; of a sweep those of its smallest size, by default 15000");
ABSL_FLAG(bool, sweep, false, "measure 8, 40, 200 and 1000 kernels, half of them dynamic (half a minute on a GPU)");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kBatches = 200;
constexpr int kSweepNodes[] = {8, 40, 200, 1000};

// Each way's times relative to `combined`, and its host time relative to `static_replay`.
Section compared(int nodes, const std::vector<Way>& ways) {
  const auto named = [&](const char* name) {
    return *std::find_if(ways.begin(), ways.end(), [&](const Way& way) { return way.name == name; });
  };
  const Way combined = named("combined");
  const Way floor = named("static_replay");
  Section section{absl::StrFormat("nodes_%d", nodes), {}};
  for (const Way& way : ways) {
    section.rows.push_back({way.name,
                            {{"host_us", way.host_us, 2, true},
                             {"total_ms", way.total_ms, 1, true},
                             {"host_to_combined", way.host_us / combined.host_us, 3, true},
                             {"total_to_combined", way.total_ms / combined.total_ms, 3, true},
                             {"host_us_above_static", way.host_us - floor.host_us, 2, true},
                             {"cuda_calls_per_iteration", way.cuda_calls_per_iteration, 2}}});
  }
  return section;
}

void sweep(Loop loop, int iterations, Report* report) {
  for (const int nodes : kSweepNodes) {
    loop.nodes = nodes;
    loop.dynamic = nodes / 2;
    const int fewer = std::max(1, iterations * kSweepNodes[0] / nodes);
    const Amount amount{fewer, std::clamp(fewer / kBatch, 1, kBatches)};
    report->parameters.emplace_back(absl::StrFormat("iterations_%d", nodes), fewer);
    report->sections.push_back(compared(nodes, measure(loop, sweep_kinds(), amount, &report->equal)));
  }
}

int run() {
  const bool sweeps = absl::GetFlag(FLAGS_sweep);
  Loop loop{absl::GetFlag(FLAGS_nodes), absl::GetFlag(FLAGS_dynamic), nullptr, nullptr};
  if (loop.dynamic < 0) loop.dynamic = loop.nodes / 2;
  const int iterations = absl::GetFlag(FLAGS_iterations).value_or(sweeps ? 15000 : 40000);
  if (loop.nodes < 1 || loop.dynamic > loop.nodes || iterations < 1) {
    absl::FPrintF(stderr, "--nodes and --iterations must be at least 1, --dynamic at most --nodes\n");
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);
  Report report;
  report.demo = "dynamic_params";
  report.machine = announce();

  void* state = nullptr;
  DEMO_CUDA(cudaMalloc(&state, kCount * sizeof(std::uint32_t)));
  loop.state = static_cast<std::uint32_t*>(state);
  DEMO_CUDA(cudaStreamCreateWithFlags(&loop.stream, cudaStreamNonBlocking));
  if (sweeps) {
    absl::PrintF("half of the kernels with a changing float; %d iterations of 8, fewer of more\n", iterations);
    sweep(loop, iterations, &report);
  } else {
    report.parameters = {{"nodes", loop.nodes}, {"dynamic", loop.dynamic}, {"iterations", iterations}};
    absl::PrintF("%d iterations of %d kernels, %d of them with a changing float\n", iterations, loop.nodes,
                 loop.dynamic);
    report.ways = measure(loop, kinds(), {iterations, kBatches}, &report.equal);
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
