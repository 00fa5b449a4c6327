#include "support.h"

#include <absl/flags/commandlineflag.h>
#include <absl/flags/parse.h>
#include <absl/flags/reflection.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <system_error>

#include "../tools/progress.h"

namespace demo {
namespace {

thread_local std::uint64_t calls = 0;

std::string version(int number) { return absl::StrFormat("%d.%d", number / 1000, number % 1000 / 10); }

// Our own and the driver's texts contain no other characters that JSON must escape.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result + "\"";
}

[[noreturn]] void wrong_usage(const std::string& message) {
  absl::FPrintF(stderr, "%s; --help lists the flags\n", message);
  std::exit(2);
}

// Abseil's parser ends the program with status 1 on a wrong flag, and accepts arguments that are not flags.
void check_flags(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::size_t start = argument.find_first_not_of('-');
    if (start != 1 && start != 2) wrong_usage(absl::StrCat("unexpected argument: ", quoted(argument)));
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(start, equals == std::string::npos ? equals : equals - start);
    // Abseil handles these, although they are not registered as flags.
    if (name == "help" || name == "helpfull" || name == "version") continue;
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) wrong_usage(absl::StrCat("unknown flag: ", argument.substr(0, equals)));
    const bool next_is_value = equals == std::string::npos && !flag->IsOfType<bool>();
    if (next_is_value && ++i == arguments.size()) wrong_usage(absl::StrCat("--", name, " needs a value"));
    if (!next_is_value && equals == std::string::npos) continue;
    const std::string value = next_is_value ? arguments[i] : argument.substr(equals + 1);
    std::string error;
    if (!flag->ParseFrom(value, &error)) wrong_usage(absl::StrCat("--", name, " does not take ", quoted(value)));
  }
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

std::string in_json(const std::vector<Column>& columns) {
  std::string fields;
  for (const Column& column : columns) {
    if (!column.value) continue;
    absl::StrAppend(&fields, ", ", quoted(column.name), ": ",
                    absl::StrFormat("%.*f", column.decimals == 0 ? 0 : 4, *column.value));
  }
  return fields;
}

int width(const Column& column) { return std::max(9, static_cast<int>(column.name.size())); }

std::string headings_of(const std::vector<Column>& columns, bool times) {
  std::string headings;
  for (const Column& column : columns) {
    if (times || !column.is_time) absl::StrAppendFormat(&headings, " %*s", width(column), column.name);
  }
  return headings;
}

std::string in_table(const std::vector<Column>& columns, bool times) {
  std::string cells;
  for (const Column& column : columns) {
    if (column.is_time && !times) continue;
    const std::string value = column.value ? absl::StrFormat("%.*f", column.decimals, *column.value) : "-";
    absl::StrAppendFormat(&cells, " %*s", width(column), value);
  }
  return cells;
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
  machine.times_mean_something = on_gpu();
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
  check_flags(std::vector<std::string>(argv + 1, argv + argc));
  absl::ParseCommandLine(argc, argv);
}

void check_writable(const std::string& file) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(file, ignored);
  if (!std::ofstream(file, std::ios::app)) {
    absl::FPrintF(stderr, "cannot write %s\n", file);
    std::exit(2);
  }
  if (!existed) std::filesystem::remove(file, ignored);
}

void check(cudaError_t error, const char* call) {
  ++calls;
  if (error == cudaSuccess) return;
  absl::FPrintF(stderr, "%s: %s (%s)\n", call, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

std::uint64_t raw_calls() { return calls; }

void check(const absl::Status& status) {
  if (status.ok()) return;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  std::exit(1);
}

cudaGraphNode_t last_captured_node(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  DEMO_CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count));
#else
  DEMO_CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &nodes, &count));
#endif
  return count == 1 ? nodes[0] : nullptr;
}

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

void repeat_in_shuffled_order(std::size_t count, int repetitions, const std::function<void(std::size_t)>& measure) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(1);
  const std::size_t all = count * static_cast<std::size_t>(std::max(repetitions, 0));
  std::size_t done = 0;
  graphcache::tools::Progress progress("measuring");
  while (repetitions-- > 0) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      progress.show(done++, all);
      measure(i);
    }
  }
}

double microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

int Report::finish(const std::string& json) const {
  print_table();
  if (!json.empty() && !write_json(json)) return 1;
  return equal ? 0 : 1;
}

Section section_of(const std::vector<Check>& checks, int decimals, bool* passed) {
  constexpr double kMillion = 1e6;
  Section section{"check", {}};
  for (const Check& check : checks) {
    section.rows.push_back(
        {check.name, {{"found_ppm", check.found * kMillion, decimals}, {"limit_ppm", check.limit * kMillion}}});
    if (check.found <= check.limit) continue;
    absl::FPrintF(stderr, "%s: %g, and at most %g is right\n", check.name, check.found, check.limit);
    *passed = false;
  }
  return section;
}

void Report::print_table() const {
  const bool times = machine.times_mean_something;
  const std::string headings = times ? absl::StrFormat("%12s %12s %10s ", "host us/iter", "total ms", "speed-up") : "";
  const std::string more = ways.empty() ? "" : headings_of(ways[0].columns, times);
  if (!ways.empty()) absl::PrintF("%-19s %s%15s%s  %s\n", "way", headings, "CUDA calls/iter", more, "outcomes");
  for (const Way& way : ways) {
    const std::string measured =
        times ? absl::StrFormat("%12.2f %12.1f %9.2fx ", way.host_us, way.total_ms, ways[0].total_ms / way.total_ms)
              : "";
    const std::string calls_made =
        way.cuda_calls_per_iteration ? absl::StrFormat("%.2f", *way.cuda_calls_per_iteration) : "-";
    std::vector<std::string> outcomes;
    for (const auto& [name, count] : way.outcomes) {
      if (count != 0) outcomes.push_back(absl::StrCat(name, " ", count));
    }
    absl::PrintF("%-19s %s%15s%s  %s\n", way.name, measured, calls_made, in_table(way.columns, times),
                 outcomes.empty() ? "-" : absl::StrJoin(outcomes, ", "));
  }
  for (const Section& section : sections) {
    const std::string heading = section.rows.empty() ? "" : headings_of(section.rows[0].columns, times);
    if (heading.empty()) continue;
    std::size_t width = 19;
    for (const Section::Row& row : section.rows) width = std::max(width, row.name.size());
    const auto padding = [&](const std::string& name) { return std::string(width - name.size(), ' '); };
    absl::PrintF("\n%s%s%s\n", section.name, padding(section.name), heading);
    for (const Section::Row& row : section.rows) {
      absl::PrintF("%s%s%s\n", row.name, padding(row.name), in_table(row.columns, times));
    }
  }
  absl::PrintF("results: %s\n", equal ? absl::StrCat("every way's bytes equal ", reference) : "NOT EQUAL");
}

bool Report::write_json(const std::string& file) const {
  std::ofstream out(file);
  std::vector<std::string> objects;
  for (const Way& way : ways) {
    std::string object = absl::StrFormat("    {\"name\": %s, \"host_us\": %.4f, \"total_ms\": %.4f", quoted(way.name),
                                         way.host_us, way.total_ms);
    if (way.cuda_calls_per_iteration) {
      absl::StrAppendFormat(&object, ", \"cuda_calls_per_iteration\": %.4f", *way.cuda_calls_per_iteration);
    }
    absl::StrAppend(&object, in_json(way.columns));
    if (!way.outcomes.empty()) absl::StrAppend(&object, ", \"outcomes\": ", json_object(way.outcomes));
    objects.push_back(object + "}");
  }
  std::string more;
  for (const Section& section : sections) {
    absl::StrAppend(&more, ",\n  ", quoted(section.name), ": [\n",
                    absl::StrJoin(section.rows, ",\n",
                                  [](std::string* text, const Section::Row& row) {
                                    absl::StrAppend(text, "    {\"name\": ", quoted(row.name), in_json(row.columns),
                                                    "}");
                                  }),
                    "\n  ]");
  }
  out << absl::StrFormat(
      "{\n  \"demo\": %s,\n  \"runtime\": %s,\n  \"device\": %s,\n  \"driver\": %s,\n  \"parameters\": %s,\n"
      "  \"equal\": %s,\n  \"ways\": [\n%s\n  ]%s\n}\n",
      quoted(demo), quoted(kRuntime), quoted(machine.device), quoted(machine.driver), json_object(parameters),
      equal ? "true" : "false", absl::StrJoin(objects, ",\n"), more);
  out.flush();
  if (!out) absl::FPrintF(stderr, "cannot write %s\n", file);
  return out.good();
}

}  // namespace demo
