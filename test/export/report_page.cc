// report_page FOLDER: a cache on hostrt with hostile labels and a hostile title. Writes its page (page.html), the same
// with everything that may leave the process (all.html), a page of an unused cache (empty.html), pages of keys with one
// label, without (alike.html) and with whole keys (alike_all.html), and the expected contents of the first one
// (expected.json).
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache_export/report.h"
#include "kernels.h"
#include "launch.h"

namespace {

using Json = nlohmann::ordered_json;
using graphcache::EagerReason;
using graphcache::Outcome;

// EntryInfo::label has at most 32 bytes.
const char* const kLabels[] = {
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "</script><svg onload=alert(1)>",
    "<!--<script>",
    "<img src=http://a.invalid/x>",
    "'\"`\\ &lt;b&gt; ${1+1} {data}",
    "\xE2\x80\xA8 and \xE2\x80\xA9 end lines",
    "no UTF-8: \xFF\xC0\xAF\xED\xA0\x80",
    "longer than what is kept of a label, and cut in the midst of it",
    "cut inside a character: 1234567\xC3\xA4\xC3\xA4",
    "",
    "plain",
};
constexpr const char* kTitle = "A title </title></script><script>document.title = 'wrong'</script> \xFF";
constexpr int kSize = 64;
constexpr int kAlike = 12;   // keys with one label
constexpr int kChain = 100;  // equal nodes of each of their graphs
constexpr std::uint64_t kLarge = 0xABCDE'0000'0000;

void check(bool is_right, const std::string& what) {
  if (is_right) return;
  std::fprintf(stderr, "report_page: %s\n", what.c_str());
  std::exit(1);
}

void check(cudaError_t error) { check(error == cudaSuccess, cudaGetErrorString(error)); }

void write(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  check(static_cast<bool>(out.flush()), "cannot write " + file);
}

Json expected(const graphcache::Cache& cache, const float* data) {
  const graphcache::Stats stats = cache.stats();
  Json json = {{"title", kTitle},
               {"runs", stats.runs()},
               {"hit_rate", stats.hit_rate()},
               {"graph_rate", stats.graph_rate()},
               {"captures", stats.captures},
               {"evictions", stats.evictions},
               {"live_executables", stats.live_executables},
               {"live_templates", stats.live_templates},
               {"estimated_device_bytes", stats.estimated_device_bytes},
               {"capture_time_ns", stats.capture_time.count()},
               {"instantiate_time_ns", stats.instantiate_time.count()},
               {"update_time_ns", stats.update_time.count()},
               {"first_launch_time_ns", stats.first_launch_time.count()},
               {"outcomes.failed", stats.failed}};
  for (int i = 0; i < graphcache::kOutcomeCount; ++i) {
    const auto outcome = static_cast<Outcome>(i);
    json[std::string("outcomes.") + to_string(outcome)] = stats.outcome(outcome);
  }
  for (int i = 0; i < graphcache::kEagerReasonCount; ++i) {
    const auto reason = static_cast<EagerReason>(i);
    json[std::string("eager_reasons.") + to_string(reason)] = stats.eager(reason);
  }
  const auto counts = graphcache::find_listener<graphcache::HitLatency>(cache.options().listeners)->counts();
  for (std::size_t i = 0; i < counts.size(); ++i) json["hit_latency." + std::to_string(i)] = counts[i];
  json["labels"] = Json::array();
  for (const graphcache::LabelStats& each : graphcache::labels(cache)) json["labels"].push_back(each.label);
  json["entries"] = Json::object();
  for (const graphcache::EntryInfo& entry : cache.entries()) {
    std::uint64_t runs = 0;
    for (const std::uint64_t count : entry.outcomes) runs += count;
    json["entries"][std::to_string(entry.id)] = runs;
  }
  std::ostringstream address;
  address << std::hex << reinterpret_cast<std::uintptr_t>(data);
  json["address"] = address.str();
  return json;
}

// Runs of all kinds, on a graph with a side branch.
void use(graphcache::Cache& cache, cudaStream_t stream, float* data) {
  cudaStream_t side = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
  check(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  check(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  check(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  const auto run = [&](const char* label) {
    const auto outcome =
        cache.run(graphcache::key(label, "part of a key", data), stream, graphcache::params(data),
                  [&](graphcache::Recorder& rec, graphcache::Slot<float*> slot) {
                    rec.launch(graphcache::test::add, {dim3(1), dim3(kSize)}, slot, kSize, 1234.5f);
                    check(cudaEventRecord(forked, rec.stream()));
                    check(cudaStreamWaitEvent(side, forked, 0));
                    check(graphcache::test::launch(graphcache::test::do_nothing, dim3(1), dim3(1), side));
                    check(cudaEventRecord(joined, side));
                    check(cudaStreamWaitEvent(rec.stream(), joined, 0));
                    rec.launch(graphcache::test::add, {dim3(2), dim3(kSize / 2)}, slot, kSize, 1.0f);
                  });
    check(outcome.ok(), outcome.status().ToString());
  };
  for (int round = 0; round < 3; ++round) {
    for (const char* label : kLabels) run(label);
  }
  for (int i = 0; i < 3000; ++i) run("plain");
  for (int i = 0; i < 3; ++i) {
    (void)cache.run(graphcache::key(kLabels[0], "direct"), stream, [](cudaStream_t) {});
    (void)cache.run(graphcache::key("fails"), stream,
                    [](cudaStream_t) { return absl::DataLossError("part of an error"); });
  }
  check(cudaStreamSynchronize(stream));
}

// Keys with one label, which differ in parts of several kinds. Their graphs are chains of equal nodes.
void use_alike(graphcache::Cache& cache, cudaStream_t stream, float* data) {
  for (int i = 1; i <= kAlike; ++i) {
    const auto outcome = cache.run(
        graphcache::key("md step", 100 + i, true, i % 2 == 0 ? "even part" : "odd part", data + i, kLarge + i), stream,
        [&](graphcache::Recorder& rec) {
          for (int node = 0; node < kChain; ++node) {
            rec.launch(graphcache::test::add, {dim3(1), dim3(1)}, data + i, 1, 1.0f);
          }
        });
    check(outcome.ok(), outcome.status().ToString());
  }
  check(cudaStreamSynchronize(stream));
}

}  // namespace

int main(int, char** argv) {
  const std::string folder = argv[1];
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaMalloc(&memory, kSize * sizeof(float)));
  auto* const data = static_cast<float*>(memory);
  graphcache::Cache cache(
      {.max_executables = 4,
       .share = graphcache::Share::kNever,
       .listeners = {std::make_shared<graphcache::History>(), std::make_shared<graphcache::HitLatency>(),
                     std::make_shared<graphcache::EventRing>(10'000)}});
  graphcache::Cache sharing({.max_executables = 4});
  for (graphcache::Cache* const each : {&cache, &sharing}) use(*each, stream, data);

  graphcache::ReportOptions options;
  options.title = kTitle;
  write(folder + "/page.html", report_html(cache, options));
  options.may_leave = {.keys = true, .values = true};
  write(folder + "/all.html", report_html(sharing, options));
  write(folder + "/empty.html", report_html(graphcache::Cache()));

  graphcache::Cache alike({.max_executables = 4});
  use_alike(alike, stream, data);
  write(folder + "/alike.html", report_html(alike));
  write(folder + "/alike_all.html", report_html(alike, {.may_leave = {.keys = true}}));
  write(folder + "/expected.json", expected(cache, data).dump(1, ' ', false, Json::error_handler_t::replace));
}
