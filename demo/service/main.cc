// A service that serves requests in a loop and exports its cache's metrics to Prometheus. A request is a "prefill" of a
// prompt, whose length is rounded up to a bucket, followed by some tokens of "decode", whose batch size follows the
// load. There are more keys than executables, so some are evicted.
//
//   ./demo/run service --seconds 60      and http://127.0.0.1:9464/metrics meanwhile
//
// With --manifest FILE, it writes at its end the keys that were worth a graph, and warms them at its next start for at
// most a second.
//
// The kernels are those of the pipeline. At the end, all their results are compared with the host reference.
#include <absl/flags/flag.h>
#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <graphcache_export/json.h>
#include <graphcache_export/prometheus.h>
#include <prometheus/exposer.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "../../tools/progress.h"
#include "../support.h"
#include "traffic.h"

ABSL_FLAG(double, seconds, 0, "how long it runs; 0: until it is interrupted");
ABSL_FLAG(int, requests, 0, "how many requests it serves, after which it only shows the counts; 0: as many as it can");
ABSL_FLAG(std::string, address, "127.0.0.1:9464", "where it serves /metrics; port 0 is any free one");
ABSL_FLAG(std::string, manifest, "", "file of the keys to warm at the start, if there is one, written at the end");
ABSL_FLAG(std::string, json, "", "file to write the cache's state to, at the end");

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenRequests(1);
constexpr std::chrono::seconds kWarmUp(1);  // at most

volatile std::sig_atomic_t interrupted = 0;
void interrupt(int) { interrupted = 1; }

bool is_loopback(const std::string& address) {
  if (absl::StrContains(address, ',')) return false;  // several addresses
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

// Returns null, with a message, if the address cannot be served.
std::unique_ptr<prometheus::Exposer> exposer_at(const std::string& address) try {
  if (!is_loopback(address)) {
    absl::FPrintF(stderr, "warning: other machines may be able to read the metrics at %s\n", address);
  }
  return std::make_unique<prometheus::Exposer>(address);
} catch (const std::exception& error) {
  absl::FPrintF(stderr, "cannot serve at %s: %s\n", address, error.what());
  return nullptr;
}

// Flushes, because another process may wait for the line.
void say(const std::string& line) {
  absl::PrintF("%s\n", line);
  std::fflush(stdout);
}

bool save(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  if (file << text << std::flush) return true;
  absl::FPrintF(stderr, "cannot write %s\n", path);
  return false;
}

// Returns false, with a message, if the file exists and is not a manifest, so that it is not overwritten.
bool warm_up(const std::string& path, Traffic* traffic) {
  std::ifstream file(path);
  if (!file) return true;  // the first start
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto keys = graphcache::read_manifest(text);
  if (!keys.ok()) {
    absl::FPrintF(stderr, "%s: %s\n", path, keys.status().ToString());
    return false;
  }
  graphcache::tools::Progress progress("warming keys");
  const graphcache::WarmUp warmed = graphcache::warm_up(
      *keys, kWarmUp, [&](const graphcache::ManifestKey& key) { return traffic->warm(key); },
      [&](std::size_t done, std::size_t all) { progress.show(done, all); });
  progress.clear();
  say(absl::StrFormat("warmed %d of %d keys of %s", warmed.warmed, keys->size(), path));
  if (!warmed.error.ok()) absl::FPrintF(stderr, "%d keys failed: %s\n", warmed.failed, warmed.error.ToString());
  return true;
}

int run() {
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const int most_requests = absl::GetFlag(FLAGS_requests);
  const std::string address = absl::GetFlag(FLAGS_address), json = absl::GetFlag(FLAGS_json);
  const std::string manifest = absl::GetFlag(FLAGS_manifest);
  if (seconds < 0 || most_requests < 0) {
    absl::FPrintF(stderr, "--seconds and --requests must be at least 0\n");
    return 2;
  }
  if (!json.empty()) check_writable(json);
  announce();
  Traffic traffic;
  if (!manifest.empty() && !warm_up(manifest, &traffic)) return 2;
  const std::unique_ptr<prometheus::Exposer> exposer = exposer_at(address);
  if (exposer == nullptr) return 2;
  const auto collector = std::make_shared<graphcache::PrometheusCollector>(traffic.cache(), "service");
  exposer->RegisterCollectable(collector);
  const std::size_t colon = address.rfind(':');
  say(absl::StrFormat("metrics: http://%s:%d/metrics",
                      colon == std::string::npos ? "0.0.0.0" : address.substr(0, colon),
                      exposer->GetListeningPorts().at(0)));

  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  const auto begin = Clock::now();
  const auto is_over = [&] {
    return interrupted != 0 || (seconds > 0 && Clock::now() - begin >= std::chrono::duration<double>(seconds));
  };
  int requests = 0;
  for (; !is_over(); std::this_thread::sleep_for(kBetweenRequests)) {
    if (most_requests != 0 && requests == most_requests) continue;
    traffic.serve(requests++);
    if (requests == most_requests) say("all requests are served");
  }

  const bool is_right = traffic.equals_reference();
  const graphcache::Stats stats = traffic.cache().stats();
  absl::PrintF("%d requests: %d runs, %.1f %% hits, %d captures, %d evictions; results: %s\n", requests, stats.runs(),
               100 * stats.hit_rate(), stats.captures, stats.evictions,
               is_right ? "equal to the host reference" : "NOT EQUAL");
  if (!json.empty() && !save(json, graphcache::to_json(traffic.cache()) + '\n')) return 1;
  if (!manifest.empty() && !save(manifest, graphcache::manifest(traffic.cache()))) return 1;
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv, "A service that shows Prometheus what its cache does; see the top of the source.");
  return demo::run();
}
