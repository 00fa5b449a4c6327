// The code that a program needs without the library: a captured graph with its two known slot nodes, and the executable
// made from it.
#pragma once

#include <cuda_runtime_api.h>

#include "loop.h"

namespace demo {

// Captures the request's work and keeps the graph.
class Template {
 public:
  Template(const Loop& loop, const Request& request);
  ~Template();
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  cudaGraph_t graph() const { return graph_; }
  cudaGraphNode_t step_node() const { return step_node_; }
  cudaGraphNode_t value_node() const { return value_node_; }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphNode_t step_node_ = nullptr;
  cudaGraphNode_t value_node_ = nullptr;
};

class Executable {
 public:
  // The template must outlive the executable, because its node handles are needed to patch the executable.
  Executable(const Loop& loop, const Template& base);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // The request must be of the executable's bucket.
  void patch(const Request& request);
  void update(cudaGraph_t graph);
  void launch();

 private:
  void set(cudaGraphNode_t node, const Request& request, int index);

  const Loop& loop_;
  const Template& base_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace demo
