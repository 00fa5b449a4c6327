// The work: chains of short kernels, and their results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct Topology {
  std::string name;
  int chains;
  int length;  // kernels of each chain

  int nodes() const { return chains * length; }
};

// The topologies of the article: straight lines, and four parallel chains.
std::vector<Topology> topologies();

// A topology's streams and memory. Each chain has its own stream and its own number, which every kernel of the chain
// changes differently.
class Work {
 public:
  explicit Work(const Topology& topology);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Topology& topology() const { return topology_; }
  cudaStream_t stream() const { return streams_[0]; }

  // Enqueues everything on stream(): the streams of the other chains fork from it and join it at the end.
  void enqueue() const;
  void synchronize() const;
  // Sets all numbers to zero, as before the first run.
  void clear() const;
  // Whether the numbers are those after `runs` runs since clear(). Prints a message if not.
  bool equals(int runs, const std::string& way) const;

 private:
  void launch(int chain, int node) const;

  const Topology topology_;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t forked_ = nullptr;
  std::vector<cudaEvent_t> joined_;
  std::uint32_t* values_ = nullptr;
};

}  // namespace demo
