// GPU time of graphs whose nodes are rewritten by a node of the graph itself: device_time [--json FILE] [ROUNDS].
//
//   values  the second half of a chain of kernels has a value that changes at each run: written by the device
//           (Patching::kDeviceUpdated), beside patches by the host (kPerNode)
//   keys    eight keys in turn, which differ in the grids and values of all kernels: on one executable with a parameter
//           table (Sharing::kTable), beside an executable for each key (Share::kNever)
//
// The figure is the time for each of 64 runs, launched one after the other, until the GPU is done. Executables of one
// graph differ by a few percent, so there are several of each way, all alive at once. The ways take turns; medians of
// the rounds.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"
#include "../forced_ways.h"

namespace {

namespace test = graphcache::test;
using graphcache::Options;

constexpr int kCount = 32, kRuns = 64, kKeys = 8;

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

// A cache and the sum of its runs.
class Instance {
 public:
  Instance(const Options& options, int nodes, bool keys) : cache_(options), nodes_(nodes), has_keys_(keys) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), kCount * sizeof(float)));
    clear();
    for (int i = 0; i < 3 * kKeys; ++i) run();  // makes all executables and all sets
    must_be_right();
  }

  // Time of each run in us.
  double measure() {
    clear();
    const double ns = bench::nanoseconds([&] {
      for (int i = 0; i < kRuns; ++i) run();
      CHECK(cudaStreamSynchronize(stream_));
    });
    must_be_right();
    return ns / 1000 / kRuns;
  }
  graphcache::Stats stats() const { return cache_.stats(); }

 private:
  void clear() {
    CHECK(cudaMemset(data_, 0, kCount * sizeof(float)));
    CHECK(cudaDeviceSynchronize());
    expected_ = 0;
  }

  void run() {
    const int number = runs_++ % kKeys;
    const auto value = static_cast<float>(number % 4);
    const auto outcome = has_keys_ ? run_key(number, value) : run_values(value);
    if (!outcome.ok()) fail(outcome.status().ToString().c_str());
  }
  absl::StatusOr<graphcache::Outcome> run_key(int number, float value) {
    expected_ += value * static_cast<float>(nodes_);
    return cache_.run(graphcache::key("device_time", number), stream_, [&](cudaStream_t on) {
      for (int i = 0; i < nodes_; ++i) {
        CHECK(test::launch(test::add, static_cast<unsigned>(1 + number), kCount, on, data_, kCount, value));
      }
    });
  }
  absl::StatusOr<graphcache::Outcome> run_values(float value) {
    expected_ += (1 + value) * static_cast<float>(nodes_ / 2);
    return cache_.run(graphcache::key("device_time"), stream_, graphcache::params(value),
                      [&](graphcache::Recorder& rec, graphcache::Slot<float> slot) {
                        for (int i = 0; i < nodes_ / 2; ++i) {
                          rec.launch(test::add, {dim3(1), dim3(kCount)}, data_, kCount, 1.0f);
                        }
                        for (int i = 0; i < nodes_ / 2; ++i) {
                          rec.launch(test::add, {dim3(1), dim3(kCount)}, data_, kCount, slot);
                        }
                      });
  }
  void must_be_right() const {
    std::vector<float> values(kCount);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(values.data(), data_, kCount * sizeof(float), cudaMemcpyDeviceToHost));
    if (values != std::vector<float>(kCount, expected_)) fail("wrong sums");
  }

  graphcache::Cache cache_;
  const int nodes_;
  const bool has_keys_;
  cudaStream_t stream_ = bench::new_stream();
  float* data_ = nullptr;
  float expected_ = 0;
  int runs_ = 0;
};

void measure(bench::Report& report, bool keys, int nodes, int rounds) {
  Options by_host, by_device;
  by_host.share = graphcache::Share::kNever;
  const int count = nodes < 100 ? 12 : keys ? 4 : 8;
  std::vector<std::unique_ptr<Instance>> of_host, of_device;
  for (int i = 0; i < count; ++i) {
    test::force(test::Patching::kPerNode);
    of_host.push_back(std::make_unique<Instance>(by_host, nodes, keys));
    test::force(keys ? test::Patching::kAuto : test::Patching::kDeviceUpdated);
    if (keys) test::force(&by_device, test::Sharing::kTable);
    of_device.push_back(std::make_unique<Instance>(by_device, nodes, keys));
    const graphcache::Stats stats = of_device.back()->stats();
    if (stats.refused_device_updates != 0 || stats.live_executables != 1) fail("the device does not update");
  }
  std::vector<double> host, device;
  for (int round = -2; round < rounds; ++round) {  // negative rounds are a warm-up
    double sums[2] = {};
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool host_first = (round + i) % 2 == 0;
      for (const bool is_host : {host_first, !host_first}) {
        sums[is_host ? 0 : 1] += (is_host ? of_host : of_device)[at]->measure();
      }
    }
    if (round < 0) continue;
    host.push_back(sums[0] / count);
    device.push_back(sums[1] / count);
  }
  report.add({"device_time",
              {{"change", keys ? "keys" : "values"}, {"nodes", nodes}},
              "us",
              bench::median(device),
              keys ? "an executable a key" : "patches by the host",
              bench::median(host)});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 15);
  for (const int nodes : {8, 40, 200}) measure(report, /*keys=*/false, nodes, rounds);
  for (const int nodes : {20, 200}) measure(report, /*keys=*/true, nodes, rounds);
  return report.write();
}
