#include "diamond.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"

namespace demo {
namespace {

constexpr int kCount = 64;

// Four buffers. Each kernel of the diamond writes one of them, its first argument, which identifies the kernel here.
class Diamond {
 public:
  Diamond() {
    for (std::uint32_t*& buffer : buffers_) {
      void* memory = nullptr;
      DEMO_CUDA(cudaMalloc(&memory, kCount * sizeof(std::uint32_t)));
      buffer = static_cast<std::uint32_t*>(memory);
    }
    for (cudaStream_t* stream : {&stream_, &other_}) {
      DEMO_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    for (cudaEvent_t* event : {&fork_, &join_}) {
      DEMO_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }
  ~Diamond() {
    for (std::uint32_t* const buffer : buffers_) DEMO_CUDA(cudaFree(buffer));
    for (const cudaStream_t stream : {stream_, other_}) DEMO_CUDA(cudaStreamDestroy(stream));
    for (const cudaEvent_t event : {fork_, join_}) DEMO_CUDA(cudaEventDestroy(event));
  }

  cudaStream_t stream() const { return stream_; }

  // Calls use(function, arguments) for a kernel: 0 to 3 for A to D.
  template <class Use>
  void with_kernel(int which, const Use& use) {
    auto [a, b, c, d] = buffers_;
    int count = kCount;
    std::uint32_t salt = static_cast<std::uint32_t>(which) + 1, round = 0;
    void* for_stir[] = {&a, &count, &salt, &round};
    void* for_b[] = {&b, &a, &count, &salt};
    void* for_c[] = {&c, &a, &count, &salt};
    void* for_d[] = {&d, &b, &c, &count};
    void** const arguments[] = {for_stir, for_b, for_c, for_d};
    const void* const functions[] = {reinterpret_cast<const void*>(&stir), reinterpret_cast<const void*>(&stir_into),
                                     reinterpret_cast<const void*>(&stir_into),
                                     reinterpret_cast<const void*>(&combine)};
    use(functions[which], arguments[which]);
  }

  void launch(int which, cudaStream_t stream) {
    with_kernel(which, [&](const void* function, void** arguments) {
      DEMO_CUDA(cudaLaunchKernel(function, dim3(1), dim3(kCount), arguments, 0, stream));
    });
  }

  // Forks from `stream` for C and joins it for D.
  void enqueue(cudaStream_t stream) {
    launch(0, stream);
    DEMO_CUDA(cudaEventRecord(fork_, stream));
    DEMO_CUDA(cudaStreamWaitEvent(other_, fork_, 0));
    launch(1, stream);
    launch(2, other_);
    DEMO_CUDA(cudaEventRecord(join_, other_));
    DEMO_CUDA(cudaStreamWaitEvent(stream, join_, 0));
    launch(3, stream);
  }

  cudaGraph_t explicitly() {
    cudaGraph_t graph = nullptr;
    DEMO_CUDA(cudaGraphCreate(&graph, 0));
    std::array<cudaGraphNode_t, 4> nodes{};
    const auto add = [&](int which, std::vector<cudaGraphNode_t> behind) {
      with_kernel(which, [&](const void* function, void** arguments) {
        cudaKernelNodeParams params{};
        params.func = const_cast<void*>(function);
        params.gridDim = dim3(1);
        params.blockDim = dim3(kCount);
        params.kernelParams = arguments;
        DEMO_CUDA(cudaGraphAddKernelNode(&nodes[static_cast<std::size_t>(which)], graph, behind.data(), behind.size(),
                                         &params));
      });
    };
    add(0, {});
    add(1, {nodes[0]});
    add(2, {nodes[0]});
    add(3, {nodes[1], nodes[2]});
    return graph;
  }

  cudaGraph_t captured() {
    cudaGraph_t graph = nullptr;
    DEMO_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue(stream_);
    DEMO_CUDA(cudaStreamEndCapture(stream_, &graph));
    return graph;
  }

  // Edges between kernels, in order.
  std::vector<std::pair<int, int>> edges(cudaGraph_t graph) {
    cudaGraphNode_t from[16], to[16];
    std::size_t count = 16;
#if CUDART_VERSION >= 13000
    cudaGraphEdgeData data[16];
    DEMO_CUDA(cudaGraphGetEdges(graph, from, to, data, &count));
#else
    DEMO_CUDA(cudaGraphGetEdges(graph, from, to, &count));
#endif
    std::vector<std::pair<int, int>> all;
    for (std::size_t i = 0; i < count; ++i) all.emplace_back(which(from[i]), which(to[i]));
    std::sort(all.begin(), all.end());
    return all;
  }

  void prepare() {
    for (std::uint32_t* const buffer : buffers_) {
      DEMO_CUDA(cudaMemsetAsync(buffer, 7, kCount * sizeof(std::uint32_t), stream_));
    }
  }
  bool is_right() {
    std::array<std::uint32_t, kCount> found{};
    DEMO_CUDA(cudaMemcpyAsync(found.data(), buffers_[3], sizeof found, cudaMemcpyDeviceToHost, stream_));
    DEMO_CUDA(cudaStreamSynchronize(stream_));
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t a = stirred_on_host(0x07070707u, 1, i);
      if (found[i] != 31u * stirred_on_host(a, 2, i) + stirred_on_host(a, 3, i)) return false;
    }
    return true;
  }

 private:
  int which(cudaGraphNode_t node) {
    cudaKernelNodeParams params{};
    DEMO_CUDA(cudaGraphKernelNodeGetParams(node, &params));
    const auto* const written = *static_cast<std::uint32_t**>(params.kernelParams[0]);
    return static_cast<int>(std::find(buffers_.begin(), buffers_.end(), written) - buffers_.begin());
  }

  std::array<std::uint32_t*, 4> buffers_{};
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
};

Section::Row row(const char* name, std::size_t nodes, std::optional<std::size_t> edges, std::optional<bool> same,
                 bool right, bool* equal) {
  *equal = *equal && right && same.value_or(true);
  const auto number = [](const auto& value) {
    return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
  };
  return {name,
          {{"nodes", static_cast<double>(nodes), 0},
           {"edges", number(edges), 0},
           {"edges_equal", number(same), 0},
           {"result_equal", right ? 1.0 : 0.0, 0}}};
}

}  // namespace

Section diamond(bool* equal) {
  Section section{"diamond", {}};
  Diamond work;
  std::vector<std::pair<int, int>> wanted;
  const auto by_graph = [&](const char* name, cudaGraph_t graph) {
    std::size_t nodes = 0;
    DEMO_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    const auto edges = work.edges(graph);
    if (wanted.empty()) wanted = edges;
    cudaGraphExec_t executable = nullptr;
    DEMO_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    work.prepare();
    DEMO_CUDA(cudaGraphLaunch(executable, work.stream()));
    section.rows.push_back(row(name, nodes, edges.size(), edges == wanted, work.is_right(), equal));
    DEMO_CUDA(cudaGraphExecDestroy(executable));
    DEMO_CUDA(cudaGraphDestroy(graph));
  };
  by_graph("explicit API", work.explicitly());
  by_graph("captured", work.captured());

  graphcache::Cache cache;
  bool right = true;
  for (int i = 0; i < 2; ++i) {  // captured, then replayed
    work.prepare();
    const auto outcome =
        cache.run(graphcache::key("diamond"), work.stream(), [&](cudaStream_t stream) { work.enqueue(stream); });
    check(outcome.status());
    right = right && work.is_right() &&
            *outcome == (i == 0 ? graphcache::Outcome::kInstantiated : graphcache::Outcome::kReplayed);
  }
  section.rows.push_back(row("cache.run", cache.entries()[0].nodes, std::nullopt, std::nullopt, right, equal));
  return section;
}

}  // namespace demo
