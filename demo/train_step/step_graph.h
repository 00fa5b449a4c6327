// A training step as a graph on the raw API: captured once. Before each further launch, the three nodes that change are
// set.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "training.h"

namespace demo {

class StepGraph {
 public:
  // Captures the step. `gradient` enqueues the work between the copy of the batch and the optimizer. The loss is copied
  // from `loss`.
  StepGraph(const Training& training, const Step& step, std::size_t batch_bytes, const float* loss,
            const std::function<void()>& gradient);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // A captured step takes four CUDA calls: three here, one for the launch.
  void patch(const Step& step) const;
  void launch() const;

 private:
  const Training& training_;
  const std::size_t batch_bytes_;
  const float* const loss_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t batch_node_ = nullptr;
  cudaGraphNode_t adam_node_ = nullptr;
  cudaGraphNode_t loss_node_ = nullptr;
};

}  // namespace demo
