// A loop like that of an LLM decoder. Every iteration takes a batch of some size, padded to one of `buckets` sizes, and
// launches `nodes` short kernels whose grid follows the size. Two values change in every iteration: the first kernel
// takes a step counter, the last one a float. The buckets follow a Zipf distribution: a few of them make up most
// iterations, and all of them occur. Seven ways to run it:
//
//   no_graph             every kernel launched by itself
//   plain_lru            by hand on the raw API: at most `executables` executables, one a bucket. A bucket without one
//                        destroys the one used least recently, is captured and instantiated; a bucket with one has its
//                        two nodes patched
//   recapture_update     every iteration captured again, one executable updated from it
//   unlimited            like plain_lru, but nothing is ever destroyed: the bound that device memory allows or does not
//   cache_run            graphcache with at most `executables` executables
//   cache_run_always     the same with Share::kAlways: sets of a parameter table on one device-updated executable
//   cache_run_unlimited  graphcache with one executable for each bucket, to compare with `unlimited`
//
// Each way processes the requests twice, each time from nothing. Total: all iterations enqueued one after another,
// until the GPU is done. Host: the host time of each iteration, with a synchronization before each fourth one that is
// not timed, because otherwise a full launch queue would make the host wait for the GPU. The first fifth of the
// iterations is the warm-up, whose mean is warmup_us. Median, p99, mean and calls are of the rest. Captures,
// instantiations and updates are of all iterations. Every time is the median of the repetitions.
//
// Only hostrt counts the calls that a cache makes. A cache makes many calls to read a captured graph. So hostrt has few
// buckets by default: each is captured in the warm-up, whose calls are not counted.
//
// In the section "switch" two buckets take turns on one executable, with equal grids and other arguments in all nodes,
// with other grids as well, and with other arguments in four nodes. Once by hand (two kept templates,
// cudaGraphExecUpdate from the bucket's template, two nodes patched, one launch), and once in a cache with
// max_executables = 1. The time is the median host time of an iteration, in batches of four that start with the GPU
// idle.
//
// The section "start" is measured in processes in which only the one way has run. first_replay_ms is the time from its
// construction until the host has enqueued one run of each bucket and a second one of the last bucket,
// first_replay_done_ms the time until the GPU is done with them. taken_bytes is the device memory taken by then and the
// warm-up, by cudaMemGetInfo. The section "of_unlimited" has these figures and the times above relative to `unlimited`.
//
// With --cublas, a third of the kernels are cuBLAS products, whose number of columns depends on the bucket, and a third
// hash the products' bits into the state. The results are compared with those of launching every kernel by itself.
//
// With --report, --trace or --dot, a cache like cache_run's makes one more pass after all measurements, and its events
// are written: as a page, as a trace of the last events, and as pictures of two buckets' graphs and of their
// difference. These need the component graphcache_export (docs/observability.md).
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support.h"
#include "loop.h"
#include "observe.h"
#include "start.h"
#include "switching.h"
#include "ways.h"

ABSL_FLAG(int, buckets, 0,
          "batch buckets; the n-th one's grids are of n blocks; by default 64 on a GPU and 12 on hostrt");
ABSL_FLAG(int, nodes, 200, "kernels per iteration, at least 2");
ABSL_FLAG(int, iterations, 0,
          "iterations; by default 5000 on a GPU, 1500 with --cublas, and 400 on hostrt, which executes every thread of "
          "every kernel on the CPU");
ABSL_FLAG(int, executables, 0,
          "executables that plain_lru, cache_run and cache_run_always may keep; by default 8 on a GPU and 4 on hostrt");
ABSL_FLAG(bool, cublas, false, "make a third of the kernels products of cuBLAS, which is looked for; GPU only");
ABSL_FLAG(std::string, json, "", "file to write the results to");
ABSL_FLAG(std::string, report, "", "file to write a page to that shows what a cache did, watched in one more pass");
ABSL_FLAG(std::string, trace, "", "file to write the last events of that pass to, for chrome://tracing and Perfetto");
ABSL_FLAG(std::string, dot, "",
          "folder to write pictures to of two buckets' graphs and of their difference, for Graphviz, and as SVG where "
          "its dot is installed");

namespace demo {
namespace {

constexpr int kGpuBuckets = 64;
constexpr int kHostrtBuckets = 12;
constexpr int kGpuExecutables = 8;
constexpr int kHostrtExecutables = 4;
constexpr int kGpuIterations = 5000;
constexpr int kCublasIterations = 1500;
constexpr int kHostrtIterations = 400;
constexpr int kSwitchIterations = 400;  // at most
constexpr int kRepetitions = 3;
constexpr int kBatch = 4;  // iterations between two synchronizations

// Samples of one way, one for each repetition.
struct Samples {
  std::vector<double> total_ms;
  std::vector<double> median_us;
  std::vector<double> p99_us;
  std::vector<double> mean_us;
  std::vector<double> warmup_us;
};

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double percentile_99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() * 99 + 99) / 100 - 1];
}

// The whole loop without a stop.
bool measure_total(const Kind& kind, const Loop& loop, const std::vector<Request>& requests,
                   const std::vector<std::uint32_t>& expected, Samples* samples) {
  loop.clear();
  const std::unique_ptr<Iteration> iteration = kind.make(loop);
  samples->total_ms.push_back(microseconds([&] {
                                for (const Request& request : requests) iteration->run(request);
                                DEMO_CUDA(cudaStreamSynchronize(loop.stream));
                              }) /
                              1000);
  return loop.equals(expected, (kind.name + ", all iterations").c_str());
}

std::vector<Column> columns(const Iteration& iteration) {
  const auto count = [](std::uint64_t number) { return static_cast<double>(number); };
  const Counters counters = iteration.counters();
  return {{"captures", count(counters.captures)},
          {"instantiations", count(counters.instantiations)},
          {"updates", count(counters.updates)},
          {"live_executables", count(counters.live_executables)},
          {"device_bytes", count(counters.device_bytes)}};
}

// The host time of each iteration.
bool measure_host(const Kind& kind, const Loop& loop, const std::vector<Request>& requests,
                  const std::vector<std::uint32_t>& expected, Samples* samples, Way* way) {
  loop.clear();
  const std::unique_ptr<Iteration> iteration = kind.make(loop);
  const std::size_t warmup = requests.size() / 5;
  std::vector<double> warmup_us;
  std::vector<double> host_us;
  std::uint64_t calls = 0;
  std::uint64_t counted = 0;  // by the runtime, if it counts
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i % kBatch == 0) DEMO_CUDA(cudaStreamSynchronize(loop.stream));
    const std::uint64_t calls_before = iteration->cuda_calls().value_or(0);
    const std::uint64_t counted_before = runtime_calls().value_or(0);
    const double us = microseconds([&] { iteration->run(requests[i]); });
    (i < warmup ? warmup_us : host_us).push_back(us);
    if (i < warmup) continue;
    counted += runtime_calls().value_or(0) - counted_before;
    calls += iteration->cuda_calls().value_or(0) - calls_before;
  }
  const double measured = static_cast<double>(host_us.size());
  samples->median_us.push_back(median(host_us));
  samples->p99_us.push_back(percentile_99(host_us));
  samples->mean_us.push_back(mean(host_us));
  samples->warmup_us.push_back(mean(warmup_us));
  if (iteration->cuda_calls()) way->cuda_calls_per_iteration = static_cast<double>(calls) / measured;
  way->columns = columns(*iteration);
  if (iteration->cache() != nullptr) way->outcomes = outcome_counts(iteration->cache()->stats());
  bool equal = loop.equals(expected, (kind.name + ", iterations one by one").c_str());
  if (runtime_calls() && counted != calls) {
    absl::FPrintF(stderr, "%s: %d CUDA calls were made, %d reported\n", kind.name, counted, calls);
    equal = false;
  }
  return equal;
}

void measure_ways(const Loop& loop, const std::vector<Kind>& all, const std::vector<Request>& requests,
                  Report* report) {
  const std::vector<std::uint32_t> expected = reference(loop, requests);
  std::vector<Samples> samples(all.size());
  report->ways.resize(all.size());
  repeat_in_shuffled_order(all.size(), kRepetitions, [&](std::size_t i) {
    const bool total = measure_total(all[i], loop, requests, expected, &samples[i]);
    const bool host = measure_host(all[i], loop, requests, expected, &samples[i], &report->ways[i]);
    if (!total || !host) report->equal = false;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    Way& way = report->ways[i];
    way.name = all[i].name;
    way.host_us = median(samples[i].median_us);
    way.total_ms = median(samples[i].total_ms);
    const Column times[] = {{"p99_us", median(samples[i].p99_us), 2, true},
                            {"mean_us", median(samples[i].mean_us), 2, true},
                            {"warmup_us", median(samples[i].warmup_us), 2, true}};
    way.columns.insert(way.columns.begin(), std::begin(times), std::end(times));
  }
}

Section starts_section(const std::vector<Kind>& all, const std::vector<Start>& starts) {
  Section section{"start", {}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    section.rows.push_back({all[i].name,
                            {{"first_replay_ms", starts[i].first_replay_ms, 2, true},
                             {"first_replay_done_ms", starts[i].first_replay_done_ms, 2, true},
                             {"taken_bytes", starts[i].taken_bytes, 0, true}}});
  }
  return section;
}

// Every time, and the memory, relative to the way with this name.
Section parts_of(const std::string& base, const std::vector<Way>& ways, const std::vector<Start>& starts) {
  const auto figures = [&](std::size_t i) -> std::vector<std::pair<const char*, double>> {
    const auto& columns = ways[i].columns;
    const auto mean = std::find_if(columns.begin(), columns.end(), [](const Column& c) { return c.name == "mean_us"; });
    return {{"mean", mean->value.value_or(0)},
            {"median", ways[i].host_us},
            {"total", ways[i].total_ms},
            {"first_replay", starts[i].first_replay_ms},
            {"first_replay_done", starts[i].first_replay_done_ms},
            {"taken_bytes", starts[i].taken_bytes}};
  };
  const auto whole = std::find_if(ways.begin(), ways.end(), [&](const Way& way) { return way.name == base; });
  const auto of = figures(static_cast<std::size_t>(whole - ways.begin()));
  Section section{"of_" + base, {}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto part = figures(i);
    std::vector<Column> columns;
    for (std::size_t j = 0; j < part.size(); ++j) {
      const bool known = of[j].second > 0;
      columns.push_back({part[j].first, known ? std::optional(part[j].second / of[j].second) : std::nullopt, 3, true});
    }
    section.rows.push_back({ways[i].name, columns});
  }
  return section;
}

int run() {
  const bool gpu = on_gpu();
  const bool cublas = absl::GetFlag(FLAGS_cublas);
  const auto or_default = [](int given, int usual) { return given == 0 ? usual : given; };
  const int buckets = or_default(absl::GetFlag(FLAGS_buckets), gpu ? kGpuBuckets : kHostrtBuckets);
  const int nodes = absl::GetFlag(FLAGS_nodes);
  const int executables = or_default(absl::GetFlag(FLAGS_executables), gpu ? kGpuExecutables : kHostrtExecutables);
  const int gpu_iterations = cublas ? kCublasIterations : kGpuIterations;
  const int iterations = or_default(absl::GetFlag(FLAGS_iterations), gpu ? gpu_iterations : kHostrtIterations);
  if (buckets < 1 || nodes < 2 || executables < 1 || iterations < 1) {
    absl::FPrintF(stderr, "--buckets, --executables and --iterations must be at least 1, --nodes at least 2\n");
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);
  const Observed observed{absl::GetFlag(FLAGS_report), absl::GetFlag(FLAGS_trace), absl::GetFlag(FLAGS_dot)};
  observed.check();

  const Plan plan{nodes, buckets, std::max(buckets, kSwitchBlocks), cublas};
  const std::vector<Kind> all = kinds(executables, buckets);
  const std::vector<Request> requests = zipf_requests(buckets, iterations);
  const std::vector<Request> warmup(requests.begin(), requests.begin() + iterations / 5);
  const std::vector<Start> starts = measure_starts(plan, all, warmup, gpu ? kRepetitions : 1);

  Report report;
  report.demo = "buckets";
  report.machine = announce();
  report.parameters = {{"buckets", buckets},
                       {"nodes", nodes},
                       {"iterations", iterations},
                       {"executables", executables},
                       {"cublas", cublas}};
  absl::PrintF("%d iterations over %d buckets, each a graph of %d kernels%s; a limit of %d executables\n", iterations,
               buckets, nodes, cublas ? ", a third of them products of cuBLAS" : "", executables);
  absl::PrintF(
      "by hand: plain_lru keeps the executables used last, recapture_update captures each time and updates one,\n"
      "unlimited keeps all; cache_run: graphcache with the limit, sharing where that is full (_always: at once) or\n"
      "without a limit (_unlimited); switch: two buckets take turns on one executable, by hand (raw) and in a cache.\n"
      "Calls and times leave out the first fifth of the iterations, the warm-up. The other counts are of all.\n");
  if (cublas) report.reference = "those of every kernel launched by itself";
  for (const Start& start : starts) report.equal = start.equal && report.equal;

  const Setup setup(plan);
  measure_ways(setup.loop(), all, requests, &report);
  report.sections = {{"switch", {}}, starts_section(all, starts), parts_of("unlimited", report.ways, starts)};
  if (!measure_switching(setup.loop(), std::min(iterations, kSwitchIterations), kRepetitions, &report.sections[0])) {
    report.equal = false;
  }
  if (observed.is_wanted() && !observe(setup.loop(), requests, executables, observed)) report.equal = false;
  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(
      argc, argv, "A decode-like loop over many batch sizes, run seven ways and compared; see the top of the source.");
  return demo::run();
}
