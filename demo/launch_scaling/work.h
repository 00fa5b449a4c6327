// What is launched: chains of short kernels, and what they leave.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct Topology {
  std::string name;
  int chains;
  int length;  // Kernels of each chain.

  int nodes() const { return chains * length; }
};

// The article's: straight lines, and four chains side by side.
std::vector<Topology> topologies();

// A topology's streams and memory. Each chain has a stream and a number of its own, to which every kernel of the chain
// does something else.
class Work {
 public:
  explicit Work(const Topology& topology);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Topology& topology() const { return topology_; }
  cudaStream_t stream() const { return streams_[0]; }

  // The whole of it on stream(): the other chains' streams fork from it, and join it at the end.
  void enqueue() const;
  void synchronize() const;
  // Makes all numbers zero, as before the first run.
  void clear() const;
  // Whether the numbers are what so many runs since clear() leave; if not, with a message.
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
