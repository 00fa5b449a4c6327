// policy_sim: replays traces through policies and prints the cost of each.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "../progress.h"
#include "cache.h"
#include "generators.h"
#include "ledger.h"
#include "policies.h"
#include "trace.h"

namespace graphcache::sim {
namespace {

constexpr char kHelp[] =
    R"(Replays traces through the policy, and prints what it costs beside a dictionary of executables, as Markdown.

  policy_sim                     the summary: means and worst ratios over all traces and budgets, for each Share
  policy_sim --ratios            and a row for each trace: ratios of the default Share at each budget
  policy_sim --details           and a row for each trace, budget and policy
  policy_sim --check             the summary; fails if the default Share exceeds what is allowed
  policy_sim --calibrate         the model beside what was measured
  policy_sim --trace FILE        of this trace instead of the generated ones; may be repeated
  policy_sim --write NAME        prints the generated trace of this name

Each ratio is to the dictionary of the same trace and budget: one executable a key, captured again after eviction.
`total` is the time of the host, of the device and of the kernels in sum, for all runs. Later runs are those of a key
after its first one, and their worst is without the kernels' own time. `start-up` is the host time of first runs.
`memory` is the peak of executables, tables and parameter sets, without updater nodes for slots and without what the
driver takes once. A trace that limits device memory has no other budget. Means are geometric. `all keys held`: at
budgets that hold all keys. Allowed are 1.01 there in total, host of later runs and memory, 1.16 elsewhere in total, and
0.70 in the mean of all totals.
)";

constexpr std::array<std::size_t, 5> kBudgets = {4, 8, 16, 64, kUnlimited};

std::string name_of(std::size_t budget) { return budget == kUnlimited ? "none" : std::to_string(budget); }

Totals replay(const Trace& trace, std::size_t budget, const NamedPolicy& of) {
  Ledger ledger(trace, budget);
  const auto policy = of.make(ledger);
  for (const Run& run : trace.runs) {
    ledger.begin(run);
    policy->run(run);
    ledger.end();
  }
  return ledger.totals();
}

// What a user feels, as ratios to the dictionary. Not a number if the dictionary has nothing of it.
struct Ratios {
  double total = 0, later = 0, worst_later = 0, startup = 0, memory = 0, with_slots = 0;
};

// The costs of one trace at one budget.
class Case {
 public:
  Case(const Trace& of, std::size_t at) : trace(of), budget(at), beside(replay(of, at, dictionary())) {
    for (const NamedPolicy& policy : cache_policies()) totals.push_back(replay(trace, budget, policy));
  }

  Ratios ratios(const Totals& of) const {
    const auto part = [](auto a, auto b) { return static_cast<double>(a) / static_cast<double>(b); };
    return {part(of.price.total(), beside.price.total()), part(of.later_host, beside.later_host),
            part(of.worst_later, beside.worst_later),     part(of.startup, beside.startup),
            part(of.peak_bytes, beside.peak_bytes),       part(of.peak_bytes + of.peak_slot_bytes, beside.peak_bytes)};
  }
  bool holds_all_keys() const {
    std::size_t bytes = 0;
    for (const Graph& graph : trace.graphs) bytes += price::bytes(graph);
    return trace.graphs.size() <= budget && bytes <= trace.max_device_bytes;
  }

  const Trace& trace;
  const std::size_t budget;
  const Totals beside;         // of the dictionary
  std::vector<Totals> totals;  // of the cache, for each Share; the first is the default
};

// What --check allows.
constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr double kMeanTotal = 0.70;
Ratios limits(const Case& one) {
  const bool all = one.holds_all_keys();
  return {all ? 1.01 : 1.16, all ? 1.01 : kAny, kAny, kAny, all ? 1.01 : kAny, kAny};
}

// Bold if it exceeds the limit.
std::string text(double ratio, double limit = kAny) {
  if (std::isnan(ratio)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, ratio > limit ? "**%.3f**" : "%.3f", ratio);
  return text;
}

// Over the cases of one policy.
class Figure {
 public:
  void add(double ratio, const Case& of) {
    if (std::isnan(ratio)) return;
    logs_ += std::log(ratio);
    ++count_;
    if (worst_ != nullptr && ratio <= ratio_) return;
    worst_ = &of;
    ratio_ = ratio;
  }
  double mean() const { return std::exp(logs_ / count_); }
  std::string worst() const {
    if (worst_ == nullptr) return "-";
    return text(ratio_) + " (`" + worst_->trace.name + "`, " + name_of(worst_->budget) + ")";
  }

 private:
  double logs_ = 0, ratio_ = 0;
  int count_ = 0;
  const Case* worst_ = nullptr;
};

Figure figure(const std::vector<Case>& cases, std::size_t policy, double Ratios::*of, bool all_keys_alone) {
  Figure result;
  for (const Case& one : cases) {
    if (!all_keys_alone || one.holds_all_keys()) result.add(one.ratios(one.totals[policy]).*of, one);
  }
  return result;
}

void print_summary(const std::vector<Case>& cases) {
  struct Row {
    const char* name;
    double Ratios::*of;
    bool all_keys_alone, is_mean;
  };
  constexpr Row kRows[] = {
      {"total, mean", &Ratios::total, false, true},
      {"total, worst", &Ratios::total, false, false},
      {"host of later runs, mean", &Ratios::later, false, true},
      {"worst later run, mean", &Ratios::worst_later, false, true},
      {"start-up, mean", &Ratios::startup, false, true},
      {"all keys held: total, worst", &Ratios::total, true, false},
      {"all keys held: host of later runs, worst", &Ratios::later, true, false},
      {"all keys held: memory, worst", &Ratios::memory, true, false},
      {"all keys held: memory with updater nodes for slots, worst", &Ratios::with_slots, true, false},
      {"all keys held: start-up, worst", &Ratios::startup, true, false}};
  std::printf("| beside the dictionary |");
  for (const NamedPolicy& policy : cache_policies()) std::printf(" %s |", policy.name.c_str());
  std::puts("\n|---|---|---|---|");
  for (const Row& row : kRows) {
    std::printf("| %s |", row.name);
    for (std::size_t policy = 0; policy < cache_policies().size(); ++policy) {
      const Figure of = figure(cases, policy, row.of, row.all_keys_alone);
      std::printf(" %s |", (row.is_mean ? text(of.mean()) : of.worst()).c_str());
    }
    std::puts("");
  }
}

void print_ratios(const std::vector<Case>& cases) {
  std::printf("\ncache: total, host of later runs and memory by budget\n\n| trace |");
  for (const std::size_t budget : kBudgets) std::printf(" %s |", name_of(budget).c_str());
  std::puts("\n|---|---|---|---|---|---|");
  for (auto at = cases.begin(); at != cases.end();) {
    const Trace* const trace = &at->trace;
    std::printf("| `%s` |", trace->name.c_str());
    for (const std::size_t budget : kBudgets) {
      if (at != cases.end() && &at->trace == trace && at->budget == budget) {
        const Ratios ratios = at->ratios(at->totals.front()), limit = limits(*at);
        std::printf(" %s, %s, %s", text(ratios.total, limit.total).c_str(), text(ratios.later, limit.later).c_str(),
                    text(ratios.memory, limit.memory).c_str());
        ++at;
      }
      std::printf(" |");
    }
    std::puts("");
  }
}

// Names each case that exceeds what is allowed.
bool keeps_rule(const std::vector<Case>& cases) {
  bool keeps = figure(cases, 0, &Ratios::total, false).mean() <= kMeanTotal;
  if (!keeps) std::fprintf(stderr, "policy_sim: the mean of all totals exceeds %.2f\n", kMeanTotal);
  for (const Case& one : cases) {
    const Ratios ratios = one.ratios(one.totals.front()), limit = limits(one);
    if (!(ratios.total > limit.total || ratios.later > limit.later || ratios.memory > limit.memory)) continue;
    std::fprintf(stderr, "policy_sim: `%s` at %s: total %.3f, host of later runs %.3f, memory %.3f\n",
                 one.trace.name.c_str(), name_of(one.budget).c_str(), ratios.total, ratios.later, ratios.memory);
    keeps = false;
  }
  return keeps;
}

void print_details(const std::vector<Case>& cases) {
  std::puts(
      "\n| trace | budget | policy | total | later | worst later | start-up | memory | host ms | device ms |"
      " kernels ms | start-up ms | later host us | worst later run ms | captures | instantiations | switches |"
      " direct runs | executables | MiB | MiB of slots | driver's |");
  std::puts("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
  const auto print = [](const Case& one, const std::string& name, const Totals& of) {
    const Ratios ratios = one.ratios(of), limit = limits(one);
    std::printf("| `%s` | %s | %s | %s | %s | %s | %s | %s |", one.trace.name.c_str(), name_of(one.budget).c_str(),
                name.c_str(), text(ratios.total, limit.total).c_str(), text(ratios.later, limit.later).c_str(),
                text(ratios.worst_later).c_str(), text(ratios.startup).c_str(),
                text(ratios.memory, limit.memory).c_str());
    std::printf(" %.1f | %.1f | %.1f | %.1f | %.2f | %.2f |", of.price.host / 1e6, of.price.device / 1e6,
                of.price.kernels / 1e6, of.startup / 1e6, of.later_host / 1e3 / std::max<std::size_t>(of.later_runs, 1),
                of.worst_later / 1e6);
    std::printf(" %zu | %zu | %zu | %zu | %zu | %.1f | %.2f | %s |\n", of.captures, of.instantiations, of.switches,
                of.direct_runs, of.peak_executables, of.peak_bytes / 1048576.0, of.peak_slot_bytes / 1048576.0,
                of.takes_driver_bytes ? "yes" : "");
  };
  for (const Case& one : cases) {
    print(one, dictionary().name, one.beside);
    for (std::size_t i = 0; i < one.totals.size(); ++i) print(one, cache_policies()[i].name, one.totals[i]);
  }
}

// The demo `buckets` on an H200: 64 keys of 200 kernels with two slots, Zipf, 5000 runs, a budget of 64. Measured were
// an executable a key, of which none is evicted here, and one executable with a table.
void print_calibration() {
  struct Measured {
    const NamedPolicy& policy;
    double host_us, total_us, startup_ms, mib;
  };
  const Measured measured_ways[] = {{dictionary(), 4.5, 203.8, 76, 36}, {cache_policies().back(), 4.7, 211.2, 36, 18}};
  const std::vector<Trace> traces = generated_traces();
  std::puts(
      "| way | host us: measured | model | total us: measured | model | start-up ms: measured | model |"
      " MiB: measured | model |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (const Measured& measured : measured_ways) {
    const Totals of = replay(traces.front(), 64, measured.policy);
    const auto runs = static_cast<double>(traces.front().runs.size());
    const double bytes = of.peak_bytes + of.peak_slot_bytes + (of.takes_driver_bytes ? price::kDriverBytes : 0);
    std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.0f | %.0f | %.0f | %.0f |\n", measured.policy.name.c_str(),
                measured.host_us, of.later_host / 1e3 / of.later_runs, measured.total_us,
                (of.price.device + of.price.kernels) / 1e3 / runs, measured.startup_ms, of.startup / 1e6, measured.mib,
                bytes / 1048576);
  }
}

int write_trace(std::string_view name) {
  for (const Trace& trace : generated_traces()) {
    if (trace.name != name) continue;
    write(trace, std::cout);
    return 0;
  }
  std::fprintf(stderr, "policy_sim: there is no trace %s\n", std::string(name).c_str());
  return 2;
}

Trace read_file(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot open ") + path);
  return read(file);
}

int run(int argc, char** argv) {
  std::vector<Trace> traces;
  bool ratios = false, details = false, check = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--ratios") {
      ratios = true;
    } else if (option == "--details") {
      details = true;
    } else if (option == "--check") {
      check = true;
    } else if (option == "--trace" && has_value) {
      traces.push_back(read_file(argv[++i]));
    } else if (option == "--write" && has_value) {
      return write_trace(argv[++i]);
    } else if (option == "--calibrate") {
      print_calibration();
      return 0;
    } else {
      std::fputs(kHelp, option == "--help" ? stdout : stderr);
      return option == "--help" ? 0 : 2;
    }
  }
  if (traces.empty()) traces = generated_traces();

  std::vector<Case> cases;
  tools::Progress progress("replaying traces");
  for (const Trace& trace : traces) {
    for (const std::size_t budget : kBudgets) {
      progress.show(cases.size(), traces.size() * kBudgets.size());
      if (trace.max_device_bytes == kUnlimited || budget == kUnlimited) cases.emplace_back(trace, budget);
    }
  }
  progress.clear();
  print_summary(cases);
  if (ratios) print_ratios(cases);
  if (details) print_details(cases);
  return check && !keeps_rule(cases) ? 1 : 0;
}

}  // namespace
}  // namespace graphcache::sim

int main(int argc, char** argv) {
  try {
    return graphcache::sim::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "policy_sim: %s\n", error.what());
    return 2;
  }
}
