// Data-parallel training. Each rank has its own device with the whole network of train_step, and takes its share of
// every batch. An all-reduce inside the step's graph (by NCCL, or its CPU version on hostrt) takes the mean of all
// ranks' gradients. So a step on N ranks does the same as a step on one device with the whole batch.
//
// A rank is a thread with a device (on hostrt a process), or with --mpi a process that an MPI launcher has started. The
// batch size changes from step to step among eight buckets: eight keys. The cache may have three executables and seven
// templates, so it shares or evicts executables, and forgets templates. Batch, learning rate, step number and the place
// of the loss are slots. Four ways to run it:
//
//   eager             everything enqueued by itself
//   captured_by_hand  by hand on the raw API: a graph for each size, the nodes that change set before each launch
//   cache_run         graphcache
//   cache_run_own     the same, and no two sizes share an executable (Share::kNever)
//
// Two times of each way, medians of three repetitions. Total: all steps enqueued one after another, until the last rank
// is done, captures included. Host: the first rank's host time of a step, measured over batches of ten steps with the
// GPU idle at their start. The section "scaling" has the same for one rank, two, four, up to all of them.
//
// Three things are checked. Every way leaves the same losses and parameters as an eager run on as many ranks, bit by
// bit, on each rank. The losses of all steps equal those of one device that takes whole batches, except for rounding.
// And the caches of all ranks make the same decisions: after every 100 steps the ranks exchange a hash of the outcomes
// of their runs and of their counters. --differ tests this check: it gives the last rank's cache one executable less.
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support.h"
#include "measure.h"
#include "ranks.h"

ABSL_FLAG(std::optional<int>, steps, std::nullopt, "steps; by default 1000 on a GPU, and 200 on hostrt");
ABSL_FLAG(std::optional<int>, batch, std::nullopt,
          "examples of the largest batch, of all ranks together; by default 1024 on a GPU, and 64 on hostrt");
ABSL_FLAG(std::optional<int>, hidden, std::nullopt,
          "width of the two hidden layers; by default 256 on a GPU, and 64 on hostrt");
ABSL_FLAG(std::optional<int>, ranks, std::nullopt,
          "ranks of this program, up to 16; by default the largest of 1, 2 and 4 that there are GPUs for, and 2 on "
          "hostrt");
ABSL_FLAG(int, executables, 3, "executables that the cache may have, for eight sizes of a batch; at least 2");
ABSL_FLAG(bool, mpi, false,
          "the ranks are the processes that an MPI launcher has started: mpirun -n 2 data_parallel --mpi");
ABSL_FLAG(bool, differ, false, "lets the last rank's cache decide otherwise, which is to be found: exit status 1");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

// Limits for the difference from the loss of one device: relative to the first loss (some units in the last place), and
// relative to the loss itself.
constexpr LossDifference kLossLimit{1e-5, 1e-2};

const bool kGpu = on_gpu();

int devices() {
  int count = 0;
  DEMO_CUDA(cudaGetDeviceCount(&count));
  return count;
}

// 1, 2, 4 and so on, and all ranks.
std::vector<int> teams(int ranks) {
  std::vector<int> counts;
  for (int count = 1; count < ranks; count *= 2) counts.push_back(count);
  counts.push_back(ranks);
  return counts;
}

graphcache::Options cache_options(const Ranks& ranks) {
  graphcache::Options options;
  options.max_executables = absl::GetFlag(FLAGS_executables);
  options.max_templates = kBuckets - 1;
  if (absl::GetFlag(FLAGS_differ)) {
    // A rank that captures alone might wait for the others for ever, so all of them keep all templates.
    options.max_templates = kBuckets;
    if (ranks.rank() == ranks.count() - 1) --options.max_executables;
  }
  return options;
}

struct Settings {
  int steps;
  Shape shape;
  bool fit(int ranks) const {
    const int unit = shape.batch / kBuckets;
    bool fits = steps >= 1 && absl::GetFlag(FLAGS_executables) >= 2 && shape.hidden >= 1 && shape.hidden <= 1024 &&
                unit >= 1 && shape.batch % kBuckets == 0 && shape.batch <= 8192;
    for (const int count : teams(ranks)) fits = fits && unit % count == 0;
    return fits;
  }
};

Settings settings() {
  return {
      absl::GetFlag(FLAGS_steps).value_or(kGpu ? 1000 : 200),
      {absl::GetFlag(FLAGS_batch).value_or(kGpu ? 1024 : 64), absl::GetFlag(FLAGS_hidden).value_or(kGpu ? 256 : 64)}};
}

// The work of one rank, and the findings of all. The first rank reports them.
class Run {
 public:
  explicit Run(Ranks& all) : all_(all), settings_(settings()) {}

  int train() {
    DEMO_CUDA(cudaSetDevice(kGpu ? all_.number_here() : 0));
    if (all_.rank() == 0) begin_report();
    const Trained alone = train_eagerly(Replica(settings_.shape, settings_.steps, 0, 1, nullptr));
    for (const int count : teams(all_.count())) {
      // The other ranks wait for the next team.
      const std::unique_ptr<Ranks> team = all_.first(count);
      if (team != nullptr) add(count, measure(*team, settings_.shape, settings_.steps, cache_options(all_), alone));
      all_.meet();
    }
    const std::vector<char> right = all_.gather(static_cast<char>(right_));
    right_ = std::count(right.begin(), right.end(), 0) == 0;
    if (all_.rank() != 0) return right_ ? 0 : 1;
    report_.equal = right_;
    report_.sections = {scaling_, check_, decisions_, cache_};
    return report_.finish(absl::GetFlag(FLAGS_json));
  }

 private:
  void begin_report() {
    const Shape& shape = settings_.shape;
    report_.demo = "data_parallel";
    report_.machine = announce();
    report_.reference = "the eager run's on as many ranks";
    report_.parameters = {{"steps", settings_.steps},
                          {"batch", shape.batch},
                          {"hidden", shape.hidden},
                          {"ranks", all_.count()},
                          {"mpi", absl::GetFlag(FLAGS_mpi) ? 1 : 0},
                          {"executables", absl::GetFlag(FLAGS_executables)}};
    const char* const kind = absl::GetFlag(FLAGS_mpi) ? "processes under MPI" : kGpu ? "threads" : "processes";
    absl::PrintF("%d steps of up to %d examples on %d ranks (%s), a network of %d-%d-%d-%d with %d parameters\n",
                 settings_.steps, shape.batch, all_.count(), kind, kInputs, shape.hidden, shape.hidden, kClasses,
                 shape.all_parameters());
  }

  void add(int count, const Measured& measured) {
    const std::string ranks = absl::StrCat("_on_", count);
    for (const Way& way : measured.ways) {
      Section::Row row{way.name + ranks, {{"host us", way.host_us, 2, true}, {"total ms", way.total_ms, 1, true}}};
      row.columns.insert(row.columns.end(), way.columns.begin(), way.columns.end());
      scaling_.rows.push_back(row);
    }
    check("losses" + ranks, measured.losses.of_first, kLossLimit.of_first);
    check("own_losses" + ranks, measured.losses.of_own, kLossLimit.of_own);
    decisions_.rows.push_back({"ranks" + ranks,
                               {{"compared", static_cast<double>(measured.comparisons)},
                                {"differing", static_cast<double>(measured.differing)}}});
    for (const auto& [way, cache] : measured.caches) add_cache(way + ranks, cache);
    report_.ways = measured.ways;  // the last team is that of all ranks
    right_ = right_ && measured.equal && measured.differing == 0;
  }

  void check(const std::string& name, double found, double limit) {
    constexpr double kMillion = 1e6;
    check_.rows.push_back({name, {{"found_ppm", found * kMillion, 3}, {"limit_ppm", limit * kMillion}}});
    if (found <= limit) return;
    right_ = false;
    absl::FPrintF(stderr, "rank %d: %s differ by %g from those of one device, and at most %g is right\n", all_.rank(),
                  name, found, limit);
  }

  void add_cache(const std::string& name, const graphcache::Stats& cache) {
    Section::Row row{name, {}};
    for (const auto& [what, count] :
         std::initializer_list<std::pair<const char*, std::uint64_t>>{{"captures", cache.captures},
                                                                      {"instantiations", cache.instantiations},
                                                                      {"updates", cache.updates},
                                                                      {"set_switches", cache.set_switches},
                                                                      {"evictions", cache.evictions},
                                                                      {"forgotten", cache.forgotten},
                                                                      {"families", cache.families}}) {
      row.columns.push_back({what, static_cast<double>(count)});
    }
    cache_.rows.push_back(row);
  }

  Ranks& all_;
  const Settings settings_;
  Report report_;
  Section scaling_{"scaling", {}};
  Section check_{"check", {}};
  Section decisions_{"decisions", {}};
  Section cache_{"cache", {}};
  bool right_ = true;
};

int train(Ranks& all) {
  const bool fits = settings().fit(all.count()) && (!kGpu || all.number_here() < devices());
  const std::vector<char> fitting = all.gather(static_cast<char>(fits));
  if (std::count(fitting.begin(), fitting.end(), 0) == 0) return Run(all).train();
  if (all.rank() == 0) {
    absl::FPrintF(stderr,
                  "each rank needs a GPU; --batch must be %d times a multiple of all counts of ranks, up to 8192, "
                  "--hidden from 1 to 1024, --steps at least 1, --executables at least 2\n",
                  kBuckets);
  }
  return 2;
}

int run() {
  if (const std::string json = absl::GetFlag(FLAGS_json); !json.empty()) check_writable(json);
  if (absl::GetFlag(FLAGS_mpi)) return run_under_mpi(train);
  // On hostrt the runtime must not be called before the ranks exist.
  const int by_default = !kGpu ? 2 : devices() >= 4 ? 4 : devices() >= 2 ? 2 : 1;
  const int ranks = absl::GetFlag(FLAGS_ranks).value_or(by_default);
  if (ranks < 1 || ranks > kMostRanksHere) {
    absl::FPrintF(stderr, "--ranks must be from 1 to %d\n", kMostRanksHere);
    return 2;
  }
  return run_here(ranks, train);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv,
                    "Data-parallel training with an all-reduce inside of the graphs; see the top of the source.");
  return demo::run();
}
