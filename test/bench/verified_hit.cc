// Host time of a verified hit (Options::verify_every), on a GPU: verified_hit [ROUNDS]. Taking turns with it: a plain
// hit of the same graph, its instantiation, and its capture with an instantiation, the latter two by raw calls.
// Medians. The device is idle at the start of each, and destructions are not timed.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../kernels.h"
#include "../launch.h"
#include "graphcache/graphcache.h"

namespace {

constexpr int kCount = 32;

#define CHECK(call) check((call), #call)
void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

struct Work {
  cudaError_t enqueue(cudaStream_t on) const {
    for (int i = 0; i < nodes; ++i) {
      if (const cudaError_t error = graphcache::test::launch(graphcache::test::add, 1, kCount, on, data, kCount, 1.0f);
          error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  }
  cudaGraph_t capture() const {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(enqueue(stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }
  void run(graphcache::Cache& cache) const {
    const auto outcome =
        cache.run(graphcache::key("work", nodes), stream, [this](cudaStream_t on) { return enqueue(on); });
    if (outcome.ok()) return;
    std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
    std::exit(1);
  }

  cudaStream_t stream;
  float* data;
  int nodes;
};

template <class F>
double microseconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void measure(const Work& work, int rounds) {
  graphcache::Options options;
  graphcache::Cache plain(options);
  options.verify_every = 1;
  options.on_stale = graphcache::OnStale::kReturnError;
  graphcache::Cache verifying(options);
  for (int i = 0; i < 5; ++i) {
    work.run(plain);
    work.run(verifying);
  }
  cudaGraph_t graph = work.capture();
  enum { kHit, kVerified, kInstantiate, kCaptureToo, kWays };
  std::array<std::vector<double>, kWays> times;
  for (int round = 0; round < rounds; ++round) {
    cudaGraphExec_t executable = nullptr, captured_executable = nullptr;
    cudaGraph_t captured = nullptr;
    CHECK(cudaStreamSynchronize(work.stream));
    times[kHit].push_back(microseconds([&] { work.run(plain); }));
    CHECK(cudaStreamSynchronize(work.stream));
    times[kVerified].push_back(microseconds([&] { work.run(verifying); }));
    CHECK(cudaStreamSynchronize(work.stream));
    times[kInstantiate].push_back(microseconds([&] { CHECK(cudaGraphInstantiate(&executable, graph, 0)); }));
    times[kCaptureToo].push_back(microseconds([&] {
      captured = work.capture();
      CHECK(cudaGraphInstantiate(&captured_executable, captured, 0));
    }));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphExecDestroy(captured_executable));
    CHECK(cudaGraphDestroy(captured));
  }
  CHECK(cudaGraphDestroy(graph));
  std::array<double, kWays> us;
  for (int way = 0; way < kWays; ++way) us[way] = median(times[way]);
  std::printf("%6d %10.2f %10.2f %12.2f %14.2f %10.2f %15.3f %17.3f\n", work.nodes, us[kHit], us[kVerified],
              us[kInstantiate], us[kCaptureToo], us[kVerified] / us[kHit], us[kVerified] / us[kInstantiate],
              us[kVerified] / us[kCaptureToo]);
  const graphcache::Stats stats = verifying.stats();
  if (stats.verified < static_cast<std::uint64_t>(rounds) || stats.stale != 0 || plain.stats().verified != 0) {
    std::fprintf(stderr, "not as meant: %s\n", graphcache::to_string(stats).c_str());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  Work work{};
  CHECK(cudaStreamCreateWithFlags(&work.stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&work.data), kCount * sizeof(float)));
  CHECK(cudaMemset(work.data, 0, kCount * sizeof(float)));
  std::printf("host us, medians of %d; ratios of a verified hit\n", rounds);
  std::printf("%6s %10s %10s %12s %14s %10s %15s %17s\n", "nodes", "plain hit", "verified", "instantiate",
              "with capture", "to a hit", "to instantiate", "to both");
  for (const int nodes : {20, 200, 2000}) {
    work.nodes = nodes;
    measure(work, rounds);
  }
}
