#include "support.h"

#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

namespace demo {
namespace {

std::uint64_t calls = 0;

std::string version(int number) { return absl::StrFormat("%d.%d", number / 1000, number % 1000 / 10); }

// Text of our own and of the driver: what JSON cannot hold as it is does not occur but for these two.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result + "\"";
}

template <class Pairs>
std::string json_object(const Pairs& pairs) {
  return absl::StrCat("{",
                      absl::StrJoin(pairs, ", ",
                                    [](std::string* out, const auto& pair) {
                                      absl::StrAppend(out, quoted(pair.first), ": ", pair.second);
                                    }),
                      "}");
}

}  // namespace

Machine announce() {
  Machine machine;
  int driver = 0;
  cudaDeviceProp properties{};
  DEMO_CUDA(cudaDriverGetVersion(&driver));
  DEMO_CUDA(cudaGetDeviceProperties(&properties, 0));
  machine.device = properties.name;
  machine.driver = version(driver);
  machine.times_mean_something = std::string(kRuntime) == "cuda";
  if (machine.times_mean_something) {
    absl::PrintF("runtime: CUDA on %s, driver for CUDA %s\n", machine.device, machine.driver);
  } else {
    absl::PrintF("runtime: hostrt, the CUDA runtime on the CPU: results and calls are real, times mean nothing here\n");
  }
  return machine;
}

void parse_flags(int argc, char** argv, const std::string& usage) {
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) { return absl::EndsWith(file, "main.cc"); };
  absl::SetFlagsUsageConfig(config);
  absl::SetProgramUsageMessage(usage);
  absl::ParseCommandLine(argc, argv);
}

void check(cudaError_t error, const char* call) {
  ++calls;
  if (error == cudaSuccess) return;
  absl::FPrintF(stderr, "%s: %s (%s)\n", call, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

std::uint64_t raw_calls() { return calls; }

std::vector<std::pair<std::string, std::uint64_t>> outcome_counts(const graphcache::Stats& stats) {
  std::vector<std::pair<std::string, std::uint64_t>> counts;
  for (int i = 0; i < graphcache::kOutcomeCount; ++i) {
    counts.emplace_back(graphcache::to_string(static_cast<graphcache::Outcome>(i)), stats.outcomes[i]);
  }
  return counts;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void Report::print_table() const {
  const bool times = machine.times_mean_something;
  const std::string headings = times ? absl::StrFormat("%12s %12s %10s ", "host us/iter", "total ms", "speed-up") : "";
  absl::PrintF("%-18s %s%15s  %s\n", "way", headings, "CUDA calls/iter", "outcomes");
  for (const Way& way : ways) {
    const std::string measured =
        times ? absl::StrFormat("%12.2f %12.1f %9.2fx ", way.host_us, way.total_ms, ways[0].total_ms / way.total_ms)
              : "";
    std::vector<std::string> outcomes;
    for (const auto& [name, count] : way.outcomes) {
      if (count != 0) outcomes.push_back(absl::StrCat(name, " ", count));
    }
    absl::PrintF("%-18s %s%15.2f  %s\n", way.name, measured, way.cuda_calls_per_iteration,
                 way.outcomes.empty() ? "-" : absl::StrJoin(outcomes, ", "));
  }
  absl::PrintF("results: %s\n", equal ? "every way's bytes equal the host reference" : "NOT EQUAL");
}

bool Report::write_json(const std::string& file) const {
  std::ofstream out(file);
  std::vector<std::string> objects;
  for (const Way& way : ways) {
    std::string object =
        absl::StrFormat("    {\"name\": %s, \"host_us\": %.4f, \"total_ms\": %.4f, \"cuda_calls_per_iteration\": %.4f",
                        quoted(way.name), way.host_us, way.total_ms, way.cuda_calls_per_iteration);
    if (!way.outcomes.empty()) absl::StrAppend(&object, ", \"outcomes\": ", json_object(way.outcomes));
    objects.push_back(object + "}");
  }
  out << absl::StrFormat(
      "{\n  \"demo\": %s,\n  \"runtime\": %s,\n  \"device\": %s,\n  \"driver\": %s,\n  \"parameters\": %s,\n"
      "  \"equal\": %s,\n  \"ways\": [\n%s\n  ]\n}\n",
      quoted(demo), quoted(kRuntime), quoted(machine.device), quoted(machine.driver), json_object(parameters),
      equal ? "true" : "false", absl::StrJoin(objects, ",\n"));
  out.flush();
  if (!out) absl::FPrintF(stderr, "cannot write %s\n", file);
  return out.good();
}

}  // namespace demo
