// The CUDASTF ways (cudax, a part of NVIDIA's CCCL) of workload.h: cudastf WAY.
//
//   stf_graph_ctx    a graph_ctx for each run, which builds the graph anew; all share one async_resources_handle, whose
//                    cache of executables is updated
//   stf_record_once  a graph for each key, recorded at its first run (pop_prologue_shared) and only launched later. A
//                    stackable_ctx holds one such graph at a time, so each key has one of its own.
//
// In both, a graph is one task: a chain of 200 kernels. All keys are launched on one stream.
//
// Compiled against the headers of CCCL, which are not part of this project.
#include <cuda/experimental/stf.cuh>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workload.h"

namespace {

namespace stf = cuda::experimental::stf;

__global__ void add(float* p, int n, float v) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] += v;
}

template <class Context, class Data>
void add_chain(Context& context, Data& data, int key) {
  context.cuda_kernel_chain(data.rw())->*[key](auto x) {
    std::vector<stf::cuda_kernel_desc> kernels;
    for (int i = 0; i < peers::kKernels; ++i) {
      kernels.emplace_back(add, dim3(key + 1), dim3(peers::kBlock), 0, x.data_handle(), peers::elements(key), 1.0f);
    }
    return kernels;
  };
}

template <class Context>
auto data_of(Context& context, const peers::Work& work, int key) {
  return context.logical_data(stf::make_slice(work.data, peers::elements(key)), stf::data_place::device(0));
}

const std::string& version() {
  static const std::string text = "CCCL " + std::to_string(CCCL_MAJOR_VERSION) + '.' +
                                  std::to_string(CCCL_MINOR_VERSION) + '.' + std::to_string(CCCL_PATCH_VERSION);
  return text;
}

int graph_ctx(const peers::Work& work) {
  stf::async_resources_handle resources;
  return peers::measure("stf_graph_ctx", version().c_str(), work, [&](int key) {
    stf::graph_ctx context(work.stream, resources);
    auto data = data_of(context, work, key);
    add_chain(context, data, key);
    context.finalize();
  });
}

int record_once(const peers::Work& work) {
  struct Recorded {
    stf::stackable_ctx context;
    std::optional<decltype(data_of(context, work, 0))> data;
    stf::stackable_ctx::launchable_graph graph;
  };
  std::unordered_map<int, Recorded> recorded;
  const int status = peers::measure("stf_record_once", version().c_str(), work, [&](int key) {
    const auto [found, is_new] = recorded.try_emplace(key);
    auto& [context, data, graph] = found->second;
    if (is_new) {
      data.emplace(data_of(context, work, key));
      context.push();
      add_chain(context, *data, key);
      graph = context.pop_prologue_shared();
    }
    PEERS_CHECK(cudaGraphLaunch(graph.exec(), work.stream));
  });
  for (auto& [key, of_key] : recorded) {
    of_key.graph.reset();
    of_key.context.finalize();
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc == 2 ? argv[1] : "";
  const peers::Work work;
  add<<<1, peers::kBlock, 0, work.stream>>>(work.data, 1, 1.0f);  // loads the kernel
  work.clear();
  if (way == "stf_graph_ctx") return graph_ctx(work);
  if (way == "stf_record_once") return record_once(work);
  std::fprintf(stderr, "usage: cudastf stf_graph_ctx|stf_record_once\n");
  return 2;
}
