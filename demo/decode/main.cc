// A serving program. Four workers decode answers to requests with one transformer in bf16. Each worker has its own
// stream, cuBLAS handle and key-value cache. Its requests arrive by a Poisson process whose rate oscillates. A step
// processes one token of every active sequence, padded to the next bucket.
//
// A step's graph copies the batch's rows from pinned memory. Each layer is norm, product, rope and append to the cache,
// attention over the cache in splits, combination of the splits, product, norm, product, gate, product. Norm, product
// and the largest logit follow, and the choices are copied back. The host is one step ahead of the device: it knows the
// sequences of the next step, and the device knows the tokens that it has chosen for them. Three things change from
// step to step of a bucket: the source of the rows, the target of the choices, and the number of splits that the
// longest sequence needs, which is the grid of `attend`, one node in each layer. Four ways to run it:
//
//   eager             everything enqueued by itself
//   graph_per_bucket  by hand on the raw API: at start each worker captures, instantiates and uploads a graph for each
//                     bucket; what changes is set in its nodes before each launch
//   cache_run         graphcache: one cache for all workers, with at most `executables` executables; a graph is
//                     captured when a worker's batch first is of its bucket. What changes is slots. Share::kNever
//   cache_run_values  the same with values: the function of `eager`, in whose graph the cache finds both pointers. The
//                     splits, an integer, are in the key, so there are more graphs than in the other ways
//
// --sharing adds cache_run_when_full and cache_run_always, which may use device time for switches (Share::kWhenFull and
// Share::kAlways).
//
// Time per token: from the arrival of the last step's choices on the host until that of this step's, for each token of
// an answer. Tokens per second: of all workers together, from when all are ready for requests. Start: from before the
// way does anything until every worker has the choices of its first step. graph_bytes: device memory that the way has
// taken by the end, by cudaMemGetInfo. Host: the median time to enqueue a step. Each time is measured in its own
// process, in which each worker has run each bucket once before, so that no way pays for loading kernels; all are
// medians of the repetitions. Calls on hostrt include those for the events that the host waits for.
//
// Every row's choice and its logit must equal those of the eager way, bit by bit. The section "check" compares the
// eager work with a host reference in double precision, for a network of the same width with two layers. It has three
// figures, in millionths: the largest distance between the logits of a position and the reference's, relative to their
// length; how far the reference's logit of a chosen token is below its largest logit, relative to their root mean
// square; and the share of choices that are not the device's largest logit.
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <optional>
#include <string>
#include <vector>

#include "measure.h"
#include "reference.h"

ABSL_FLAG(std::optional<int>, steps, std::nullopt, "steps of each worker; by default 2000 on a GPU, and 200 on hostrt");
ABSL_FLAG(std::optional<int>, layers, std::nullopt, "layers; by default 16 on a GPU, and 2 on hostrt");
ABSL_FLAG(std::optional<int>, executables, std::nullopt,
          "executables that the cache may have for all workers; by default a fifth of what graph_per_bucket has");
ABSL_FLAG(bool, sharing, false, "run the cache with more ways to share executables");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kWorkers = 4;

// hostrt executes every thread of every kernel on the CPU.
Plan gpu_plan() {
  const Shape shape{16, 1024, 16, 2816, 16384};
  const graphcache::Buckets buckets{1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64};
  return {shape, {2000, 28, 0.75, {8, 48}, {32, 256}, shape.vocabulary}, buckets, kWorkers, 3};
}
Plan hostrt_plan() {
  const Shape shape{2, 32, 2, 48, 64};
  return {shape, {200, 3, 0.75, {2, 6}, {4, 50}, shape.vocabulary}, graphcache::Buckets{1, 2, 3, 4, 6, 8}, kWorkers, 1};
}

int run() {
  Plan plan = on_gpu() ? gpu_plan() : hostrt_plan();
  plan.traffic.steps = absl::GetFlag(FLAGS_steps).value_or(plan.traffic.steps);
  plan.shape.layers = absl::GetFlag(FLAGS_layers).value_or(plan.shape.layers);
  const int graphs = kWorkers * static_cast<int>(plan.buckets.size());
  const int executables = absl::GetFlag(FLAGS_executables).value_or(graphs / 5);
  if (plan.traffic.steps < 1 || plan.shape.layers < 1 || executables < 1) {
    absl::FPrintF(stderr, "--steps, --layers and --executables must be at least 1\n");
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);

  std::vector<Kind> all = kinds(plan.buckets, executables);
  if (!absl::GetFlag(FLAGS_sharing)) all.resize(kUsual);
  const Measured measured = measure(plan, all, "graph_per_bucket");

  Report report;
  report.demo = "decode";
  report.machine = announce();
  const Shape& shape = plan.shape;
  report.parameters = {{"steps", plan.traffic.steps},
                       {"workers", kWorkers},
                       {"buckets", static_cast<std::int64_t>(plan.buckets.size())},
                       {"executables", executables},
                       {"layers", shape.layers},
                       {"width", shape.width},
                       {"heads", shape.heads},
                       {"hidden", shape.hidden},
                       {"vocabulary", shape.vocabulary},
                       {"cublas", Products::by_cublas()}};
  report.reference = "the eager run's";
  absl::PrintF("%d workers, %d steps each, %d buckets; %d layers of width %d with %d heads; products by %s\n", kWorkers,
               plan.traffic.steps, plan.buckets.size(), shape.layers, shape.width, shape.heads,
               Products::by_cublas() ? "cuBLAS" : "a kernel of the demo's own");
  report.ways = measured.ways;
  report.equal = measured.equal;
  report.sections = {measured.of_base, section_of(check_steps(shape), /*decimals=*/0, &report.equal)};
  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv,
                    "A transformer's decode loop, served in several ways and compared; see the top of the source.");
  return demo::run();
}
