#include "raw_graph.h"

#include "../support.h"

namespace demo {
namespace {

// The most recently captured node.
cudaGraphNode_t last_node(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* dependencies;
  std::size_t count;
#if CUDART_VERSION >= 13000
  DEMO_CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &dependencies, nullptr, &count));
#else
  DEMO_CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &dependencies, &count));
#endif
  return dependencies[0];
}

}  // namespace

Template::Template(const Loop& loop, const Request& request) {
  DEMO_CUDA(cudaStreamBeginCapture(loop.stream, cudaStreamCaptureModeThreadLocal));
  for (int node = 0; node < loop.nodes; ++node) {
    loop.enqueue(request, node);
    if (node == 0) step_node_ = last_node(loop.stream);
    if (node == loop.nodes - 1) value_node_ = last_node(loop.stream);
  }
  DEMO_CUDA(cudaStreamEndCapture(loop.stream, &graph_));
}

Template::~Template() { DEMO_CUDA(cudaGraphDestroy(graph_)); }

Executable::Executable(const Loop& loop, const Template& base) : loop_(loop), base_(base) {
  DEMO_CUDA(cudaGraphInstantiate(&exec_, base.graph(), 0));
}

Executable::~Executable() { DEMO_CUDA(cudaGraphExecDestroy(exec_)); }

void Executable::set(cudaGraphNode_t node, const Request& request, int index) {
  Launch launch(loop_, request, index);
  const cudaKernelNodeParams params = launch.params();
  DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, node, &params));
}

void Executable::patch(const Request& request) {
  set(base_.step_node(), request, 0);
  set(base_.value_node(), request, loop_.nodes - 1);
}

void Executable::update(cudaGraph_t graph) {
  cudaGraphExecUpdateResultInfo info;
  DEMO_CUDA(cudaGraphExecUpdate(exec_, graph, &info));
}

void Executable::launch() { DEMO_CUDA(cudaGraphLaunch(exec_, loop_.stream)); }

}  // namespace demo
