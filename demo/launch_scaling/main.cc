// Measures the launch cost of a CUDA graph by its number of nodes, as NVIDIA's article "Constant Time Launch for
// Straight-Line CUDA Graphs and Other Performance Enhancements" does. The graphs are straight lines of 10, 100 and 1025
// single-thread kernels, and four parallel chains of 10 and of 100 kernels each. Two ways:
//
//   raw    by hand: capture, cudaGraphInstantiate, cudaGraphLaunch
//   cache  graphcache: run(), with the options that it comes with, in a cache of its own for each repetition
//
// Measured is the host time of each step, with the GPU idle before it, and of the combinations:
//
//   capture           raw alone: from the begin to the end of the capture, launches of all kernels between them
//   instantiate       raw alone
//   upload            raw alone: cudaGraphUpload
//   first_launch      raw alone: the first launch of what was not uploaded
//   uploaded_launch   the first launch after an upload; the first run() after warm()
//   repeat_launch     any later one
//   first_run         capture, instantiation and first launch; the first run() of a key
//   warm              capture, instantiation and upload; warm()
//   first_end_to_end  first_run, until the GPU is done
//   end_to_end        repeat_launch, until the GPU is done
//
// `device` is the GPU time of a repeated launch: between an event before it and one after it, on a stream that eight
// other launches keep busy, so that no host time is included.
//
// Each figure is the median of the repetitions (with ten repeated launches in each). `calls` are CUDA calls; a GPU's
// runtime does not count those of the cache.
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "../../tools/progress.h"
#include "../support.h"
#include "measure.h"
#include "times.h"
#include "ways.h"
#include "work.h"

ABSL_FLAG(int, iterations, 0, "repetitions of everything; by default 100 on a GPU and 5 on hostrt");
ABSL_FLAG(std::string, csv, "", "file to write the figures to, a line for each: launch_scaling/plot draws them");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kGpuIterations = 100;
constexpr int kHostrtIterations = 5;

struct Measured {
  Topology topology;
  std::vector<Figures> ways;  // in the order of kinds()
};

std::optional<double> number(std::optional<std::uint64_t> count) {
  return count ? std::optional(static_cast<double>(*count)) : std::nullopt;
}

Section shapes(const std::vector<Measured>& all) {
  Section section{"topology", {}};
  for (const Measured& measured : all) {
    const Topology& topology = measured.topology;
    section.rows.push_back({topology.name,
                            {{"nodes", static_cast<double>(topology.nodes())},
                             {"chains", static_cast<double>(topology.chains)},
                             {"length", static_cast<double>(topology.length)}}});
  }
  return section;
}

Section side_by_side(const Measured& measured) {
  Section section{measured.topology.name, {}};
  for (std::size_t i = 0; i < kMeasureCount; ++i) {
    const Figure& raw = measured.ways[0][i];
    const Figure& cache = measured.ways[1][i];
    const bool both = raw.us && cache.us && *raw.us > 0;
    section.rows.push_back({to_string(static_cast<Measure>(i)),
                            {{"raw_us", raw.us, 2, true},
                             {"cache_us", cache.us, 2, true},
                             {"cache_to_raw", both ? std::optional(*cache.us / *raw.us) : std::nullopt, 2, true},
                             {"raw_calls", number(raw.calls)},
                             {"cache_calls", number(cache.calls)}}});
  }
  return section;
}

// A figure that is unknown is left empty, and so is every time on hostrt.
bool write_csv(const std::string& file, const std::vector<Kind>& ways, const std::vector<Measured>& all, bool times) {
  std::ofstream out(file);
  out << "topology,chains,length,nodes,way,measure,us,calls\n";
  for (const Measured& measured : all) {
    const Topology& topology = measured.topology;
    for (std::size_t way = 0; way < ways.size(); ++way) {
      for (std::size_t i = 0; i < kMeasureCount; ++i) {
        const Figure& figure = measured.ways[way][i];
        if (!figure.us) continue;
        out << absl::StrFormat("%s,%d,%d,%d,%s,%s,%s,%s\n", topology.name, topology.chains, topology.length,
                               topology.nodes(), ways[way].name, to_string(static_cast<Measure>(i)),
                               times ? absl::StrFormat("%.3f", *figure.us) : "",
                               figure.calls ? absl::StrCat(*figure.calls) : "");
      }
    }
  }
  out.flush();
  if (!out) absl::FPrintF(stderr, "cannot write %s\n", file);
  return out.good();
}

int run() {
  const std::string json = absl::GetFlag(FLAGS_json);
  const std::string csv = absl::GetFlag(FLAGS_csv);
  int iterations = absl::GetFlag(FLAGS_iterations);
  if (iterations < 0) {
    absl::FPrintF(stderr, "--iterations must be at least 1\n");
    return 2;
  }
  if (iterations == 0) iterations = on_gpu() ? kGpuIterations : kHostrtIterations;
  for (const std::string& file : {json, csv}) {
    if (!file.empty()) check_writable(file);
  }
  Report report;
  report.demo = "launch_scaling";
  report.machine = announce();
  report.parameters = {{"iterations", iterations}};
  absl::PrintF("graphs of kernels of one thread, %d repetitions\n", iterations);

  const std::vector<Kind> ways = kinds();
  std::vector<Measured> all;
  graphcache::tools::Progress progress("measuring topologies");
  for (const Topology& topology : topologies()) {
    progress.show(all.size(), topologies().size());
    const Work work(topology);
    all.push_back({topology, measure(work, ways, iterations, &report.equal)});
  }
  progress.clear();
  report.sections.push_back(shapes(all));
  for (const Measured& measured : all) report.sections.push_back(side_by_side(measured));
  if (!csv.empty() && !write_csv(csv, ways, all, report.machine.times_mean_something)) return 1;
  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv,
                    "What launches of graphs cost by their number of nodes, by hand and through the cache; see the top "
                    "of the source.");
  return demo::run();
}
