// Host time of the first run of a key, on a GPU: first_run [--json] [ROUNDS]. The same work by raw calls (capture,
// instantiation and first launch) takes turns with it. Medians, and ratios of medians. The device is idle at the start
// of each time, and destructions are not timed.
//
// A graph of 50x4 nodes has four chains of 50 kernels, forked and joined by events.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../kernels.h"
#include "../launch.h"
#include "graphcache/graphcache.h"

namespace {

constexpr int kCount = 32;
constexpr int kFamily = 8;

#define CHECK(call) check((call), #call)
void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

struct Shape {
  int nodes, chains;
};

// The work that a program would enqueue.
class Work {
 public:
  explicit Work(Shape shape) : shape_(shape) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), shape.chains * kCount * sizeof(float)));
    CHECK(cudaMemset(data_, 0, shape.chains * kCount * sizeof(float)));
    CHECK(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming));
    for (int i = 1; i < shape.chains; ++i) {
      CHECK(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking));
      CHECK(cudaEventCreateWithFlags(&joined_.emplace_back(), cudaEventDisableTiming));
    }
    CHECK(cudaDeviceSynchronize());
  }

  // Keys differ only in a value.
  cudaError_t enqueue(cudaStream_t on, int key) const {
    if (!streams_.empty()) {
      if (const cudaError_t error = cudaEventRecord(forked_, on); error != cudaSuccess) return error;
    }
    for (int chain = 0; chain < shape_.chains; ++chain) {
      const cudaStream_t stream = chain == 0 ? on : streams_[chain - 1];
      if (chain > 0) {
        if (const cudaError_t error = cudaStreamWaitEvent(stream, forked_, 0); error != cudaSuccess) return error;
      }
      for (int i = 0; i < shape_.nodes; ++i) {
        const cudaError_t error = graphcache::test::launch(graphcache::test::add, 1, kCount, stream,
                                                           data_ + chain * kCount, kCount, static_cast<float>(key));
        if (error != cudaSuccess) return error;
      }
    }
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (const cudaError_t error = cudaEventRecord(joined_[i], streams_[i]); error != cudaSuccess) return error;
      if (const cudaError_t error = cudaStreamWaitEvent(on, joined_[i], 0); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  const Shape shape_;
  float* data_ = nullptr;
  cudaEvent_t forked_ = nullptr;
  std::vector<cudaStream_t> streams_;  // of all chains except the first
  std::vector<cudaEvent_t> joined_;
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

class Measurement {
 public:
  enum Way { kRaw, kDefault, kNotShared, kFamily2To8, kWays };
  static constexpr const char* kNames[kWays] = {"raw", "default", "not_shared", "family_2_to_8"};

  explicit Measurement(Shape shape) : work_(shape) {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    graphcache::Options options;
    caches_[kDefault] = std::make_unique<graphcache::Cache>(options);
    caches_[kFamily2To8] = std::make_unique<graphcache::Cache>(options);
    options.share = graphcache::Share::kNever;
    caches_[kNotShared] = std::make_unique<graphcache::Cache>(options);
  }
  ~Measurement() {
    caches_ = {};
    CHECK(cudaStreamDestroy(stream_));
  }

  void measure(int rounds) {
    constexpr int kFirstRounds = 5;
    for (int round = -kFirstRounds; round < rounds; ++round) {
      for (int turn = 0; turn < kWays; ++turn) measure_way(static_cast<Way>((round + kFirstRounds + turn) % kWays));
      if (round < 0) times_ = {};
    }
  }
  double us(Way way) const { return median(times_[way]); }
  double ratio(Way way) const { return us(way) / us(kRaw); }

 private:
  void measure_way(Way way) {
    if (way == kRaw) return measure_raw();
    graphcache::Cache& cache = *caches_[way];
    for (int i = 0; i < (way == kFamily2To8 ? kFamily : 1); ++i) {
      const int number = ++keys_;
      const graphcache::Key key = graphcache::key("first_run", number);
      CHECK(cudaStreamSynchronize(stream_));
      const double time = microseconds([&] { run(cache, key, number); });
      if (way != kFamily2To8 || i > 0) times_[way].push_back(time);
    }
    CHECK(cudaStreamSynchronize(stream_));
    const graphcache::Stats stats = cache.stats();
    if (stats.outcome(graphcache::Outcome::kEager) + stats.hits() != 0) {
      std::fprintf(stderr, "not as meant: %s\n", graphcache::to_string(stats).c_str());
      std::exit(1);
    }
    cache.clear();
  }

  void run(graphcache::Cache& cache, const graphcache::Key& key, int number) {
    const auto outcome = cache.run(key, stream_, [this, number](cudaStream_t on) { return work_.enqueue(on, number); });
    if (outcome.ok()) return;
    std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
    std::exit(1);
  }

  void measure_raw() {
    const int number = ++keys_;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CHECK(cudaStreamSynchronize(stream_));
    times_[kRaw].push_back(microseconds([&] {
      CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      CHECK(work_.enqueue(stream_, number));
      CHECK(cudaStreamEndCapture(stream_, &graph));
      CHECK(cudaGraphInstantiate(&executable, graph, 0));
      CHECK(cudaGraphLaunch(executable, stream_));
    }));
    CHECK(cudaStreamSynchronize(stream_));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
  }

  const Work work_;
  cudaStream_t stream_ = nullptr;
  int keys_ = 0;
  std::array<std::unique_ptr<graphcache::Cache>, kWays> caches_;
  std::array<std::vector<double>, kWays> times_;
};

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  int rounds = 200;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      rounds = std::atoi(argv[i]);
    }
  }
  if (rounds <= 0) {
    std::fprintf(stderr, "usage: first_run [--json] [ROUNDS]\n");
    return 2;
  }
  if (json) {
    std::printf("{\"rounds\": %d", rounds);
  } else {
    std::printf("host us of a first run, medians of %d; ratios to the raw calls\n", rounds);
    std::printf("%-8s %10s %14s %14s %14s %16s\n", "nodes", "raw us", "default", "not shared", "device time",
                "2nd to 8th key");
  }
  for (const Shape shape : {Shape{20, 1}, Shape{200, 1}, Shape{50, 4}}) {
    Measurement measurement(shape);
    measurement.measure(rounds);
    const std::string name = std::to_string(shape.nodes) + "x" + std::to_string(shape.chains);
    if (json) {
      std::printf(",\n\"%s\": {\"raw_us\": %.2f", name.c_str(), measurement.us(Measurement::kRaw));
    } else {
      std::printf("%-8s %10.2f", name.c_str(), measurement.us(Measurement::kRaw));
    }
    for (int way = Measurement::kRaw + 1; way < Measurement::kWays; ++way) {
      const double ratio = measurement.ratio(static_cast<Measurement::Way>(way));
      if (json) {
        std::printf(", \"%s\": %.3f", Measurement::kNames[way], ratio);
      } else {
        std::printf(" %14.3f", ratio);
      }
    }
    std::printf(json ? "}" : "\n");
  }
  if (json) std::printf("}\n");
}
