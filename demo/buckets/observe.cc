#include "observe.h"

#include <absl/strings/str_format.h>

#include "../support.h"

#ifdef DEMO_HAVE_EXPORT
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "graphcache/graphcache.h"
#include "graphcache_export/dot.h"
#include "graphcache_export/report.h"
#include "graphcache_export/trace.h"
#include "ways.h"
#else
#include <cstdlib>
#endif

namespace demo {

#ifdef DEMO_HAVE_EXPORT

namespace {

constexpr int kEvents = 20'000;  // each takes about 100 bytes in the ring and 150 bytes in the trace

// File names of the pictures, without extensions.
constexpr const char* kOne = "/graph";
constexpr const char* kOther = "/other";
constexpr const char* kDifference = "/difference";

bool write(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (out) {
    absl::PrintF("wrote %s\n", file);
  } else {
    absl::FPrintF(stderr, "cannot write %s\n", file);
  }
  return static_cast<bool>(out);
}

// If Graphviz is installed, writes the picture as SVG beside the text.
bool write_picture(const std::string& name, const std::string& text) {
  if (!write(name + ".dot", text)) return false;
  std::string source = name + ".dot", picture = name + ".svg";
  char program[] = "dot", format[] = "-Tsvg", output[] = "-o";
  char* const arguments[] = {program, format, output, picture.data(), source.data(), nullptr};
  pid_t child = -1;
  if (posix_spawnp(&child, program, nullptr, nullptr, arguments, environ) != 0) return true;
  int status = 0;
  const bool has_ended = waitpid(child, &status, 0) == child;
  if (has_ended && status == 0) absl::PrintF("wrote %s\n", picture);
  return true;
}

// Writes pictures of the two most recently run buckets.
bool write_pictures(const graphcache::Cache& cache, const std::string& folder) {
  std::vector<graphcache::GraphInfo> graphs;
  for (const graphcache::EntryInfo& entry : cache.entries()) {
    absl::StatusOr<graphcache::GraphInfo> graph = cache.graph(entry.id);
    if (graph.ok()) graphs.push_back(*std::move(graph));
    if (graphs.size() == 2) break;
  }
  if (graphs.size() < 2) {
    absl::FPrintF(stderr, "--dot needs two buckets with a graph\n");
    return false;
  }
  return write_picture(folder + kOne, graphcache::to_dot(graphs[0])) &&
         write_picture(folder + kOther, graphcache::to_dot(graphs[1])) &&
         write_picture(folder + kDifference, graphcache::to_dot(graphs[0], graphs[1]));
}

}  // namespace

void Observed::check() const {
  if (!report.empty()) check_writable(report);
  if (!trace.empty()) check_writable(trace);
  if (dot.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(dot, error);  // if this fails, so does writing the files
  for (const char* picture : {kOne, kOther, kDifference}) check_writable(dot + picture + ".dot");
}

bool observe(const Loop& loop, const std::vector<Request>& requests, int executables, const Observed& observed) {
  loop.clear();
  const auto events = std::make_shared<graphcache::EventRing>(kEvents);
  const std::unique_ptr<Iteration> iteration =
      cache_kind("watched", {.max_executables = executables,
                             .listeners = {std::make_shared<graphcache::History>(),
                                           std::make_shared<graphcache::HitLatency>(), events}})
          .make(loop);
  for (const Request& request : requests) iteration->run(request);
  bool passed = loop.equals(reference(loop, requests), "cache_run, watched");
  const graphcache::Cache& cache = *iteration->cache();
  if (!observed.report.empty()) {
    graphcache::ReportOptions options;
    options.title = absl::StrFormat("The demo buckets on %s", kRuntime);
    passed = write(observed.report, graphcache::report_html(cache, options)) && passed;
  }
  if (!observed.trace.empty()) passed = write(observed.trace, graphcache::chrome_trace(events->events())) && passed;
  if (!observed.dot.empty()) passed = write_pictures(cache, observed.dot) && passed;
  return passed;
}

#else

void Observed::check() const {
  if (!is_wanted()) return;
  absl::FPrintF(stderr,
                "--report, --trace and --dot need the component graphcache_export, which this build lacks: "
                "its packages were not found (-Dexport=enabled names them)\n");
  std::exit(2);
}

bool observe(const Loop&, const std::vector<Request>&, int, const Observed&) { return false; }

#endif

}  // namespace demo
