#include "measure.h"

#include <absl/strings/str_format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "serve.h"

namespace demo {
namespace {

// Figures and each worker's choices, written by a child process and read by its parent.
class Results {
 public:
  explicit Results(const Plan& plan) {
    std::size_t rows = 0;
    for (int worker = 0; worker < plan.workers; ++worker) {
      first_.push_back(rows);
      rows += count_rows(plan.traffic, plan.buckets, worker);
    }
    first_.push_back(rows);
    bytes_ = sizeof(Figures) + rows * sizeof(Choice);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    new (memory_) Figures();
  }
  ~Results() { munmap(memory_, bytes_); }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  Figures& figures() { return *static_cast<Figures*>(memory_); }
  Choice* choices(std::size_t worker) { return reinterpret_cast<Choice*>(&figures() + 1) + first_[worker]; }
  std::size_t rows(std::size_t worker) const { return first_[worker + 1] - first_[worker]; }
  std::size_t workers() const { return first_.size() - 1; }

 private:
  std::vector<std::size_t> first_;
  std::size_t bytes_;
  void* memory_;
};

// Also ends this process if the child process failed. Start-up times and memory are those of a process in which only
// the one way has run.
void serve_in_child(const Plan& plan, const Kind& kind, Results* results) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Choice*> choices;
    for (std::size_t worker = 0; worker < results->workers(); ++worker) choices.push_back(results->choices(worker));
    results->figures() = serve(plan, kind, choices);
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 1;
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return;
  absl::FPrintF(stderr, "%s, in a process of its own: failed\n", kind.name);
  std::exit(1);
}

bool equals(Results& found, Results& expected, const std::string& way, const std::string& base) {
  for (std::size_t worker = 0; worker < expected.workers(); ++worker) {
    for (std::size_t i = 0; i < expected.rows(worker); ++i) {
      const Choice& a = found.choices(worker)[i];
      const Choice& b = expected.choices(worker)[i];
      if (std::memcmp(&a, &b, sizeof(Choice)) == 0) continue;
      absl::FPrintF(stderr, "%s: choice %d of worker %d is %d (%.9g), that of %s %d (%.9g)\n", way, i, worker, a.token,
                    a.logit, base, b.token, b.logit);
      return false;
    }
  }
  return true;
}

double median_of(const std::vector<Figures>& all, double Figures::*member) {
  std::vector<double> values;
  for (const Figures& figures : all) values.push_back(figures.*member);
  return median(values);
}

double tokens_per_second(const std::vector<Figures>& all) {
  return 1000 * median_of(all, &Figures::tokens) / median_of(all, &Figures::serving_ms);
}

Way way_of(const Kind& kind, const std::vector<Figures>& all) {
  const auto count = [](std::uint64_t number) { return static_cast<double>(number); };
  const Figures& last = all.back();
  Way way;
  way.name = kind.name;
  way.host_us = median_of(all, &Figures::host_us);
  way.total_ms = median_of(all, &Figures::serving_ms);
  if (runtime_calls()) way.cuda_calls_per_iteration = last.calls;
  way.columns = {{"tokens_per_s", tokens_per_second(all), 0, true},
                 {"token_p50_us", median_of(all, &Figures::token_p50_us), 0, true},
                 {"token_p99_us", median_of(all, &Figures::token_p99_us), 0, true},
                 {"start_ms", median_of(all, &Figures::start_ms), 2, true},
                 {"graph_bytes", median_of(all, &Figures::taken_bytes), 0, true},
                 {"captures", count(last.counters.captures)},
                 {"instantiations", count(last.counters.instantiations)},
                 {"switches", count(last.counters.updates)},
                 {"executables", count(last.counters.live_executables)}};
  if (last.has_outcomes) {
    graphcache::Stats stats;
    stats.outcomes = last.outcomes;
    way.outcomes = outcome_counts(stats);
  }
  return way;
}

Section parts_of(const std::string& base, const std::vector<Kind>& kinds,
                 const std::vector<std::vector<Figures>>& figures) {
  const auto parts = [&](std::size_t i) -> std::vector<std::pair<const char*, double>> {
    return {{"tokens_per_s", tokens_per_second(figures[i])},
            {"token_p50", median_of(figures[i], &Figures::token_p50_us)},
            {"token_p99", median_of(figures[i], &Figures::token_p99_us)},
            {"start", median_of(figures[i], &Figures::start_ms)},
            {"graph_bytes", median_of(figures[i], &Figures::taken_bytes)}};
  };
  const auto whole = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.name == base; });
  const auto of = parts(static_cast<std::size_t>(whole - kinds.begin()));
  Section section{"of_" + base, {}};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    std::vector<Column> columns;
    const auto part = parts(i);
    for (std::size_t j = 0; j < part.size(); ++j) {
      const bool known = of[j].second > 0;
      columns.push_back({part[j].first, known ? std::optional(part[j].second / of[j].second) : std::nullopt, 3, true});
    }
    section.rows.push_back({kinds[i].name, columns});
  }
  return section;
}

}  // namespace

Measured measure(const Plan& plan, const std::vector<Kind>& kinds, const std::string& base) {
  Measured measured;
  std::vector<std::vector<Figures>> figures(kinds.size());
  Results expected(plan);
  Results found(plan);
  serve_in_child(plan, kinds[0], &expected);
  repeat_in_shuffled_order(kinds.size(), plan.repetitions, [&](std::size_t i) {
    for (std::size_t worker = 0; worker < found.workers(); ++worker) {
      std::memset(static_cast<void*>(found.choices(worker)), 0xff, found.rows(worker) * sizeof(Choice));
    }
    serve_in_child(plan, kinds[i], &found);
    figures[i].push_back(found.figures());
    if (!equals(found, expected, kinds[i].name, kinds[0].name)) measured.equal = false;
  });
  for (std::size_t i = 0; i < kinds.size(); ++i) measured.ways.push_back(way_of(kinds[i], figures[i]));
  measured.of_base = parts_of(base, kinds, figures);
  return measured;
}

}  // namespace demo
