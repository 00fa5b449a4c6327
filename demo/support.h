// What the demos share: the runtime they run on, raw CUDA calls that are checked and counted, timing, and the report as
// a table and as JSON.
#pragma once

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

// All CUDA calls that the process has made, where the runtime counts them: hostrt does.
std::optional<std::uint64_t> runtime_calls();

// The device that the demo runs on, as the first line of its output and the JSON name it. Prints that line.
struct Machine {
  std::string device;
  std::string driver;
  bool times_mean_something = false;
};
Machine announce();

// Reads the flags that main.cc defines, and answers --help with them. Ends the program with status 2 and a message if
// it is given anything else.
void parse_flags(int argc, char** argv, const std::string& usage);

// Ends the program with status 2 and a message if the file cannot be written. Leaves the file as it is.
void check_writable(const std::string& file);

// Ends the program if a CUDA call failed. Counts the call: raw_calls() is how many the thread has made so far.
void check(cudaError_t error, const char* call);
std::uint64_t raw_calls();

// The node that the stream's capture has got last, for those who set it by hand later.
cudaGraphNode_t last_captured_node(cudaStream_t stream);

// A number that only some demos have, by its name in the table and in the JSON.
struct Column {
  std::string name;
  std::optional<double> value;  // Where it is not known, the table says "-" and the JSON leaves it out.
  int decimals = 0;
  bool is_time = false;  // In the table only where times mean something.
};

// One way to do the demo's work, measured.
struct Way {
  std::string name;
  double host_us = 0;   // Host time of one iteration, the GPU kept idle: median.
  double total_ms = 0;  // Wall time of all iterations, the last synchronization included: median over repetitions.
  std::optional<double> cuda_calls_per_iteration;               // Where it is known.
  std::vector<Column> columns;                                  // The same ones in every way of a demo.
  std::vector<std::pair<std::string, std::uint64_t>> outcomes;  // Of the cache's ways.
};

std::vector<std::pair<std::string, std::uint64_t>> outcome_counts(const graphcache::Stats& stats);

double median(std::vector<double> values);
// Calls measure(i) for each i below `count`, so many times, each time in another order, which is the same in every run.
// Shows its progress on a terminal.
void repeat_in_shuffled_order(std::size_t count, int repetitions, const std::function<void(std::size_t)>& measure);
// Microseconds that `work` takes on the host's clock.
double microseconds(const std::function<void()>& work);

// A table of its own behind that of the ways; in the JSON an array of its name.
struct Section {
  struct Row {
    std::string name;
    std::vector<Column> columns;  // The same ones in every row.
  };
  std::string name;
  std::vector<Row> rows;
};

// How far something is from what it should be, and how far it may be. Passed if found <= limit.
struct Check {
  const char* name;
  double found;
  double limit;
};

// The section "check", in parts of a million. Clears `passed`, with a message, if one has not passed.
Section section_of(const std::vector<Check>& checks, int decimals, bool* passed);

struct Report {
  std::string demo;
  Machine machine;
  std::vector<std::pair<std::string, std::int64_t>> parameters;
  bool equal = true;
  std::string reference = "the host reference";  // What the results were compared with.
  std::vector<Way> ways;
  std::vector<Section> sections;

  // Speed-ups are over the first way.
  void print_table() const;
  // False, with a message, if the file cannot be written.
  bool write_json(const std::string& file) const;
  // Prints the table, writes the file if one is named, and returns the program's exit status.
  int finish(const std::string& json) const;
};

}  // namespace demo

#define DEMO_CUDA(call) ::demo::check((call), #call)
