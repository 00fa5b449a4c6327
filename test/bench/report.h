// The results of a benchmark: lines for people, and JSON for test/bench/compare and test/bench/plot.
//
//   bench::Report report(argc, argv, machine);
//   report.add({"hit", {{"keys", 64}}, "ns", hit, "lock_and_find", lock_and_find});
//   return report.write();
//
// A result is one figure and its reference, measured in the same run. For both, less is better. Results of different
// machines are compared by the ratio of the two.
//
// {"machine": "AMD EPYC, 2 CPUs, hostrt",
//  "results": [{"benchmark": "hit", "axes": {"keys": 64}, "unit": "ns", "value": 20.1,
//               "reference": "lock_and_find", "reference_value": 10, "ratio": 2.01}]}
//
// A result has no ratio if it has no reference or is too noisy to be guarded.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

struct Axis {
  template <class Integer>
  requires std::is_integral_v<Integer> Axis(const char* axis, Integer count)
      : name(axis), json(std::to_string(count)) {}
  Axis(const char* axis, const char* choice) : name(axis), json(bench::quoted(choice)) {}
  std::string name;
  std::string json;
};

struct Result {
  std::string benchmark;
  std::vector<Axis> axes;
  std::string unit;
  double value = 0;
  std::string reference = {};  // empty if there is none
  double reference_value = 0;
  bool guarded = true;  // Whether the ratio is stable enough to be compared with another run's.
};

class Report {
 public:
  // Takes `--json FILE` from the program's arguments. argument(i) returns the others.
  Report(int argc, char** argv, std::string machine) : machine_(std::move(machine)) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--json") != 0) {
        arguments_.emplace_back(argv[i]);
      } else if (++i < argc) {
        file_ = argv[i];
      } else {
        std::fprintf(stderr, "--json needs a file\n");
        std::exit(2);
      }
    }
  }

  // Argument i of the program, a whole number from 1 on, or `otherwise` if it is missing.
  int argument(std::size_t i, int otherwise) const {
    if (i >= arguments_.size()) return otherwise;
    const int value = std::atoi(arguments_[i].c_str());
    if (value > 0) return value;
    std::fprintf(stderr, "no number from 1 on: %s\n", arguments_[i].c_str());
    std::exit(2);
  }

  void add(const Result& result) {
    std::string axes, json = "{";
    for (const Axis& axis : result.axes) {
      axes += ' ' + axis.name + '=' + axis.json;
      json += (json.size() > 1 ? ", " : "") + bench::quoted(axis.name) + ": " + axis.json;
    }
    std::printf("%-12s %-44s %12s %-5s", result.benchmark.c_str(), axes.c_str(), number(result.value).c_str(),
                result.unit.c_str());
    json = "{\"benchmark\": " + bench::quoted(result.benchmark) + ", \"axes\": " + json +
           "}, \"unit\": " + bench::quoted(result.unit) + ", \"value\": " + number(result.value);
    if (!result.reference.empty()) {
      const double ratio = result.value / result.reference_value;
      std::printf(" %7.3f of %s (%s)", ratio, result.reference.c_str(), number(result.reference_value).c_str());
      json += ", \"reference\": " + bench::quoted(result.reference) +
              ", \"reference_value\": " + number(result.reference_value);
      if (result.guarded) json += ", \"ratio\": " + number(ratio);
    }
    std::printf("\n");
    std::fflush(stdout);
    results_.push_back(json + "}");
  }

  // The exit status of main.
  int write() const {
    if (file_.empty()) return 0;
    std::ofstream out(file_);
    out << "{\"machine\": " << bench::quoted(machine_) << ",\n \"results\": [";
    for (std::size_t i = 0; i < results_.size(); ++i) out << (i == 0 ? "\n  " : ",\n  ") << results_[i];
    out << "\n]}\n";
    out.close();
    if (out) return 0;
    std::fprintf(stderr, "%s could not be written\n", file_.c_str());
    return 1;
  }

 private:
  std::string machine_, file_;
  std::vector<std::string> arguments_, results_;
};

}  // namespace bench
