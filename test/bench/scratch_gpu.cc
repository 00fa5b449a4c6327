// Device memory for the temporaries of many keys, on a GPU: scratch [KEYS] [MIB].
//
// Key i of KEYS (64) uses a temporary of i / KEYS of MIB (64) in three kernels. It is a buffer of its own, memory that
// `fn` allocates by cudaMallocAsync and frees, or one buffer that all keys share. Each way runs with an executable a
// key, and with 8 executables. Memory is the loss of free device memory since the way began; `graphs` is the part of it
// that the driver keeps for allocations of graphs. Then all keys run in turn, and the times are those of one run. The
// sums that the kernels leave are compared with the host's.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"

namespace {

constexpr double kMiB = 1 << 20;
constexpr int kRounds = 20;

double used_mib() {
  std::size_t free = 0, all = 0;
  CHECK(cudaMemGetInfo(&free, &all));
  return static_cast<double>(all - free) / kMiB;
}

double graph_mib() {
  std::uint64_t bytes = 0;
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
  return static_cast<double>(bytes) / kMiB;
}

enum class Way { kBufferAKey, kAllocated, kShared };

class Temporaries {
 public:
  Temporaries(Way way, int keys, int most) : keys_(keys), most_(most) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&sum_), sizeof(float) * static_cast<std::size_t>(most)));
    CHECK(cudaMemset(sum_, 0, sizeof(float) * static_cast<std::size_t>(most)));
    const int buffers = way == Way::kBufferAKey ? keys : way == Way::kShared ? 1 : 0;
    for (int i = 0; i < buffers; ++i) {
      const int n = way == Way::kShared ? most : size_of(i);
      CHECK(
          cudaMalloc(reinterpret_cast<void**>(&buffers_.emplace_back()), sizeof(float) * static_cast<std::size_t>(n)));
    }
  }
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;
  ~Temporaries() {
    for (float* const buffer : buffers_) CHECK(cudaFree(buffer));
    CHECK(cudaFree(sum_));
  }

  int size_of(int which) const { return static_cast<int>(static_cast<long long>(most_) * (which + 1) / keys_); }
  absl::StatusOr<graphcache::Outcome> run(graphcache::Cache& cache, cudaStream_t stream, int which) const {
    return cache.run(graphcache::key("work", which), stream, [&](cudaStream_t on) {
      if (!buffers_.empty()) return work(on, buffers_.size() == 1 ? buffers_[0] : buffers_[which], which);
      void* temporary = nullptr;
      const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(size_of(which));
      if (const cudaError_t error = cudaMallocAsync(&temporary, bytes, on); error != cudaSuccess) return error;
      const cudaError_t error = work(on, static_cast<float*>(temporary), which);
      return error == cudaSuccess ? cudaFreeAsync(temporary, on) : error;
    });
  }
  bool is_right(int rounds) const {
    float first = 0, wanted = 0;
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&first, sum_, sizeof first, cudaMemcpyDeviceToHost));
    for (int i = 0; i < keys_; ++i) wanted += static_cast<float>(rounds * 2 * (i + 1));
    return first == wanted;
  }

 private:
  cudaError_t work(cudaStream_t on, float* temporary, int which) const {
    const int n = size_of(which);
    const dim3 grid((n + 255) / 256), block(256);
    const auto value = static_cast<float>(which + 1);
    using namespace graphcache::test;
    cudaError_t error = launch(fill, grid, block, on, temporary, n, value);
    if (error == cudaSuccess) error = launch(add, grid, block, on, temporary, n, value);
    return error == cudaSuccess ? launch(axpy, grid, block, on, sum_, temporary, n, 1.0f) : error;
  }

  const int keys_, most_;
  std::vector<float*> buffers_;
  float* sum_ = nullptr;
};

bool measure(Way way, int keys, int most, int executables, cudaStream_t stream) {
  constexpr const char* kNames[] = {"a buffer a key", "cudaMallocAsync in fn", "one buffer"};
  CHECK(cudaDeviceSynchronize());
  const double before = used_mib();
  graphcache::Options options;
  options.max_executables = executables;
  bool right = true;
  double memory = 0, of_graphs = 0, first_us = 0, host_us = 0, total_us = 0;
  {
    const Temporaries temporaries(way, keys, most);
    graphcache::Cache cache(options);
    const auto run_all = [&] {
      for (int i = 0; i < keys; ++i) right &= temporaries.run(cache, stream, i).ok();
    };
    first_us = bench::nanoseconds(run_all) / 1000 / keys;
    CHECK(cudaStreamSynchronize(stream));
    run_all();
    CHECK(cudaStreamSynchronize(stream));
    memory = used_mib() - before;
    of_graphs = graph_mib();
    total_us = bench::nanoseconds([&] {
      host_us = bench::nanoseconds([&] {
        for (int round = 0; round < kRounds; ++round) run_all();
      });
      CHECK(cudaStreamSynchronize(stream));
    });
    host_us /= 1000.0 * kRounds * keys;
    total_us /= 1000.0 * kRounds * keys;
    right &= temporaries.is_right(kRounds + 2);
  }
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaDeviceGraphMemTrim(0));
  std::printf("%-22s %11d %10.1f %10.1f %13.1f %10.2f %10.2f %10.1f%s\n", kNames[static_cast<int>(way)], executables,
              memory, of_graphs, first_us, host_us, total_us, used_mib() - before, right ? "" : "  WRONG");
  std::fflush(stdout);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const int keys = argc > 1 ? std::atoi(argv[1]) : 64, mib = argc > 2 ? std::atoi(argv[2]) : 64;
  if (keys < 1 || mib < 1 || mib > 1024) return std::fprintf(stderr, "usage: scratch [KEYS] [MIB]\n"), 2;
  const int most = mib << 18;
  std::printf("%s\n%d keys, temporaries of up to %d MiB\n", bench::machine().c_str(), keys, mib);
  std::printf("%-22s %11s %10s %10s %13s %10s %10s %10s\n", "temporaries", "executables", "MiB", "of graphs",
              "first run, us", "host us", "total us", "MiB left");
  cudaStream_t stream = bench::new_stream();
  bool right = true;
  {
    // Allocates what the process needs once: kernels and a first graph.
    const Temporaries temporaries(Way::kShared, 1, 1024);
    graphcache::Cache cache;
    for (int i = 0; i < 3; ++i) right &= temporaries.run(cache, stream, 0).ok();
  }
  for (const int executables : {keys, 8}) {
    for (const Way way : {Way::kBufferAKey, Way::kAllocated, Way::kShared}) {
      right &= measure(way, keys, most, executables, stream);
    }
  }
  CHECK(cudaStreamDestroy(stream));
  return right ? 0 : 1;
}
