#include "step_graph.h"

#include "../support.h"
#include "kernels.h"

namespace demo {

StepGraph::StepGraph(const Training& training, const Step& step, std::size_t batch_bytes, const float* loss,
                     const std::function<void()>& gradient)
    : training_(training), batch_bytes_(batch_bytes), loss_(loss) {
  const cudaStream_t stream = training_.stream();
  DEMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  DEMO_CUDA(cudaMemcpyAsync(training_.batch(), step.batch, batch_bytes_, cudaMemcpyHostToDevice, stream));
  batch_node_ = last_captured_node(stream);
  gradient();
  training_.optimize(step.rate, step.number);
  adam_node_ = last_captured_node(stream);
  DEMO_CUDA(cudaMemcpyAsync(step.loss, loss_, sizeof(float), cudaMemcpyDeviceToHost, stream));
  loss_node_ = last_captured_node(stream);
  DEMO_CUDA(cudaStreamEndCapture(stream, &graph_));
  DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
}

StepGraph::~StepGraph() {
  DEMO_CUDA(cudaGraphExecDestroy(exec_));
  DEMO_CUDA(cudaGraphDestroy(graph_));
}

void StepGraph::patch(const Step& step) const {
  DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, batch_node_, training_.batch(), step.batch, batch_bytes_,
                                               cudaMemcpyHostToDevice));
  float* parameters = training_.parameters();
  float* mean = training_.mean();
  float* square = training_.square();
  const float* gradient = training_.gradient();
  int count = training_.shape().all_parameters();
  float rate = step.rate;
  float number = step.number;
  void* arguments[] = {&parameters, &mean, &square, &gradient, &count, &rate, &number};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(&adam);
  params.gridDim = grid(count);
  params.blockDim = dim3(kThreads);
  params.kernelParams = arguments;
  DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, adam_node_, &params));
  DEMO_CUDA(
      cudaGraphExecMemcpyNodeSetParams1D(exec_, loss_node_, step.loss, loss_, sizeof(float), cudaMemcpyDeviceToHost));
}

void StepGraph::launch() const { DEMO_CUDA(cudaGraphLaunch(exec_, training_.stream())); }

}  // namespace demo
