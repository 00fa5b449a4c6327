#include "forbidden.h"

#include <absl/strings/str_cat.h>
#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"

namespace demo {
namespace {

constexpr int kCount = 64;

struct Bench {
  Bench() {
    for (std::uint32_t** buffer : {&data, &spare}) {
      void* memory = nullptr;
      DEMO_CUDA(cudaMalloc(&memory, kCount * sizeof(std::uint32_t)));
      *buffer = static_cast<std::uint32_t*>(memory);
    }
    DEMO_CUDA(cudaStreamCreate(&stream));  // a stream that the legacy stream waits for
    DEMO_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    DEMO_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaGraph_t graph = nullptr;
    DEMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    DEMO_CUDA(cudaMemsetAsync(spare, 1, sizeof(std::uint32_t), stream));
    DEMO_CUDA(cudaStreamEndCapture(stream, &graph));
    DEMO_CUDA(cudaGraphInstantiate(&another, graph, 0));
    DEMO_CUDA(cudaGraphDestroy(graph));
  }
  ~Bench() {
    for (std::uint32_t* const buffer : {data, spare}) DEMO_CUDA(cudaFree(buffer));
    for (const cudaStream_t made : {stream, other}) DEMO_CUDA(cudaStreamDestroy(made));
    DEMO_CUDA(cudaEventDestroy(event));
    DEMO_CUDA(cudaGraphExecDestroy(another));
  }

  cudaError_t launch(std::uint32_t salt, cudaStream_t on) {
    int count = kCount;
    std::uint32_t round = 0;
    void* arguments[] = {&data, &count, &salt, &round};
    return cudaLaunchKernel(reinterpret_cast<const void*>(&stir), dim3(1), dim3(kCount), arguments, 0, on);
  }
  bool is_right() {
    std::array<std::uint32_t, kCount> found{};
    DEMO_CUDA(cudaStreamSynchronize(other));
    DEMO_CUDA(cudaMemcpyAsync(found.data(), data, sizeof found, cudaMemcpyDeviceToHost, stream));
    DEMO_CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) {
      if (found[i] != stirred_on_host(stirred_on_host(0, 1, i), 2, i)) return false;
    }
    return true;
  }

  std::uint32_t *data = nullptr, *spare = nullptr;
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraphExec_t another = nullptr;
};

struct Forbidden {
  const char* name;
  std::function<cudaError_t(Bench&)> call;
};

const std::vector<Forbidden>& all_forbidden() {
  static const auto& all = *new std::vector<Forbidden>{
      {"cudaStreamSynchronize", [](Bench& bench) { return cudaStreamSynchronize(bench.stream); }},
      {"cudaStreamQuery", [](Bench& bench) { return cudaStreamQuery(bench.stream); }},
      {"cudaDeviceSynchronize", [](Bench&) { return cudaDeviceSynchronize(); }},
      {"cudaEventSynchronize",
       [](Bench& bench) {
         const cudaError_t error = cudaEventRecord(bench.event, bench.stream);
         return error != cudaSuccess ? error : cudaEventSynchronize(bench.event);
       }},
      {"cudaEventQuery",
       [](Bench& bench) {
         const cudaError_t error = cudaEventRecord(bench.event, bench.stream);
         return error != cudaSuccess ? error : cudaEventQuery(bench.event);
       }},
      {"cudaMalloc",
       [](Bench&) {
         void* memory = nullptr;
         const cudaError_t error = cudaMalloc(&memory, 1);
         return error != cudaSuccess ? error : cudaFree(memory);
       }},
      {"cudaMemcpy",
       [](Bench& bench) {
         std::uint32_t value;
         return cudaMemcpy(&value, bench.spare, sizeof value, cudaMemcpyDeviceToHost);
       }},
      {"cudaGraphLaunch", [](Bench& bench) { return cudaGraphLaunch(bench.another, bench.stream); }},
      {"a fork left unjoined",
       [](Bench& bench) {
         cudaError_t error = cudaEventRecord(bench.event, bench.stream);
         if (error == cudaSuccess) error = cudaStreamWaitEvent(bench.other, bench.event, 0);
         return error != cudaSuccess ? error : cudaMemsetAsync(bench.spare, 2, sizeof(std::uint32_t), bench.other);
       }},
  };
  return all;
}

// The name of the CUDA error in a message of the cache.
std::string error_in(const std::string& report) {
  const std::size_t begin = report.find("cudaError");
  return begin == std::string::npos ? report : report.substr(begin, report.find(' ', begin) - begin);
}

}  // namespace

Section forbidden(bool* equal) {
  Section section{"forbidden", {}};
  Bench bench;
  for (const Forbidden& one : all_forbidden()) {
    graphcache::Cache cache;
    DEMO_CUDA(cudaMemsetAsync(bench.data, 0, kCount * sizeof(std::uint32_t), bench.stream));
    const auto outcome = cache.run(graphcache::key("forbidden"), bench.stream, [&](cudaStream_t stream) -> cudaError_t {
      if (const cudaError_t error = bench.launch(1, stream); error != cudaSuccess) return error;
      const cudaError_t error = one.call(bench);
      // cudaErrorNotReady only means that work is still running.
      if (error != cudaSuccess && error != cudaErrorNotReady) return error;
      return bench.launch(2, stream);
    });
    const bool eager = outcome.ok() && *outcome == graphcache::Outcome::kEager;
    const bool done = outcome.ok() && bench.is_right();
    const std::string why = cache.entries().empty() ? "" : error_in(cache.entries()[0].error);
    *equal = *equal && eager && done && !why.empty();
    section.rows.push_back({absl::StrCat(one.name, ": ", why.empty() ? "no error" : why),
                            {{"eager", eager ? 1.0 : 0.0, 0}, {"work_done", done ? 1.0 : 0.0, 0}}});
  }
  return section;
}

}  // namespace demo
