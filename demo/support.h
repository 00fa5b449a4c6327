// What the demos share: the runtime, checked and counted CUDA calls, timing, and the report as a table and as JSON.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/stats.h"

namespace demo {

extern const char* const kRuntime;  // "cuda" or "hostrt"
inline bool on_gpu() { return std::string(kRuntime) == "cuda"; }

// The number of CUDA calls of this process, if the runtime counts them, as hostrt does.
std::optional<std::uint64_t> runtime_calls();

// The demo's device, for the first line of the output and for the JSON. Prints that line.
struct Machine {
  std::string device;
  std::string driver;
  bool times_mean_something = false;
};
Machine announce();

// Parses the flags that main.cc defines, and answers --help with them. Ends the program with status 2 and a message on
// any other argument.
void parse_flags(int argc, char** argv, const std::string& usage);

// Ends the program with status 2 and a message if the file cannot be written. Leaves the file unchanged.
void check_writable(const std::string& file);

// Ends the program if a CUDA call failed. Counts the call: raw_calls() is the thread's number of calls so far.
void check(cudaError_t error, const char* call);
std::uint64_t raw_calls();
// Ends the program if a run of a cache failed.
void check(const absl::Status& status);

// The most recently captured node of the stream, for ways that set it by hand later.
cudaGraphNode_t last_captured_node(cudaStream_t stream);

// A figure that only some demos have, by its name in the table and in the JSON.
struct Column {
  std::string name;
  std::optional<double> value;  // if unknown, the table shows "-" and the JSON omits it
  int decimals = 0;
  bool is_time = false;  // shown in the table only if times mean something
};

// The measurements of one way to do the demo's work.
struct Way {
  std::string name;
  double host_us = 0;  // median host time of one iteration with the GPU idle
  // Wall time of all iterations, the last synchronization included. The median of the repetitions.
  double total_ms = 0;
  std::optional<double> cuda_calls_per_iteration;               // if known
  std::vector<Column> columns;                                  // the same columns in every way of a demo
  std::vector<std::pair<std::string, std::uint64_t>> outcomes;  // outcomes, if the way uses a cache
};

std::vector<std::pair<std::string, std::uint64_t>> outcome_counts(const graphcache::Stats& stats);

double median(std::vector<double> values);
// Calls measure(i) for each i below `count`, `repetitions` times, each time in another order. The orders are the same
// in every run of the program. Shows its progress on a terminal.
void repeat_in_shuffled_order(std::size_t count, int repetitions, const std::function<void(std::size_t)>& measure);
// Host time of `work` in microseconds.
double microseconds(const std::function<void()>& work);

// A further table after that of the ways; in the JSON an array of its name.
struct Section {
  struct Row {
    std::string name;
    std::vector<Column> columns;  // the same columns in every row
  };
  std::string name;
  std::vector<Row> rows;
};

// A deviation and its limit. Passed if found <= limit.
struct Check {
  const char* name;
  double found;
  double limit;
};

// The section "check", in millionths. Sets `passed` to false, with a message, if a check failed.
Section section_of(const std::vector<Check>& checks, int decimals, bool* passed);

struct Report {
  std::string demo;
  Machine machine;
  std::vector<std::pair<std::string, std::int64_t>> parameters;
  bool equal = true;
  std::string reference = "the host reference";  // what the results were compared with
  std::vector<Way> ways;
  std::vector<Section> sections;

  // Speed-ups are relative to the first way.
  void print_table() const;
  // Returns false, with a message, if the file cannot be written.
  bool write_json(const std::string& file) const;
  // Prints the table, writes the file if it is named, and returns the program's exit status.
  int finish(const std::string& json) const;
};

}  // namespace demo

#define DEMO_CUDA(call) ::demo::check((call), #call)
