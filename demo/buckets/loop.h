// The work of the demo: what one request launches, and the memory that all requests leave.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace demo {

inline constexpr int kThreads = 32;  // threads of a block

// The differences between the graphs of two buckets: the grid, and the salts of the nodes from `first` up to but not
// including `end`.
struct Bucket {
  int blocks;
  std::uint32_t variant;
  int first;
  int end;

  std::uint32_t salt(int node) const {
    const std::uint32_t own = 2u * static_cast<std::uint32_t>(node) + 1u;
    return node >= first && node < end ? own + 2000u * variant : own;
  }
};

// One iteration. The step and the value are slots: the first node takes the step, the last one the value.
struct Request {
  Request(int which, int number)
      : bucket(which), step(static_cast<std::uint32_t>(number)), value(1.0f + 0.001f * static_cast<float>(number)) {}

  int bucket;
  std::uint32_t step;
  float value;
};

class Products;

struct Loop {
  enum class Work { kMix, kProduct, kAbsorb };

  int nodes;
  std::vector<Bucket> buckets;
  std::uint32_t* state;  // kThreads elements for each block of the largest grid
  int count;
  cudaStream_t stream;
  // If set, a third of the nodes are products, and a third hash their results.
  const Products* products = nullptr;

  // The first and the last node hold the slots and are always mix.
  Work work(int node) const {
    if (products == nullptr || node == 0 || node == nodes - 1) return Work::kMix;
    if (node % 3 == 1 && node + 2 < nodes) return Work::kProduct;
    return node % 3 == 2 ? Work::kAbsorb : Work::kMix;
  }
  const Bucket& bucket(const Request& request) const { return buckets[static_cast<std::size_t>(request.bucket)]; }
  std::uint32_t step(const Request& request, int node) const { return node == 0 ? request.step : 0; }
  float value(const Request& request, int node) const { return node == nodes - 1 ? request.value : fixed(node); }
  static float fixed(int node) { return 1.0f + static_cast<float>(node); }

  void enqueue(const Request& request, int node) const;
  void launch_all(const Request& request) const;
  // Sets the elements to zero and waits for that.
  void clear() const;
  // Waits for all enqueued work.
  std::vector<std::uint32_t> elements() const;
  // Whether every element has its expected value; prints the first one that has not.
  bool equals(const std::vector<std::uint32_t>& reference, const char* way) const;
};

// The launch of a mix node for one request, in the form that the runtime's calls take.
class Launch {
 public:
  Launch(const Loop& loop, const Request& request, int node);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void enqueue(cudaStream_t stream);
  // The result points into this object.
  cudaKernelNodeParams params();

 private:
  dim3 grid_;
  std::uint32_t* state_;
  int count_;
  std::uint32_t step_;
  float value_;
  std::uint32_t salt_;
  void* arguments_[5] = {&state_, &count_, &step_, &value_, &salt_};
};

// Buckets drawn from a Zipf distribution of exponent 1. The order of popularity is random and unrelated to the buckets'
// sizes.
std::vector<Request> zipf_requests(int buckets, int iterations);

// The expected elements after all requests. Computed on the host; with products, by launching everything without a
// graph, because only cuBLAS itself computes the same bits.
std::vector<std::uint32_t> reference(const Loop& loop, const std::vector<Request>& requests);

// The amount of work of a loop.
struct Plan {
  int nodes;
  int buckets;  // the grids of bucket n have n blocks
  int blocks;   // blocks of the largest grid that the memory is for
  bool products;
};

// A loop with its memory and its stream, in this process. It has run once, so that no way pays for loading kernels.
class Setup {
 public:
  explicit Setup(const Plan& plan);
  ~Setup();
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const Loop& loop() const { return loop_; }

 private:
  Loop loop_;
  std::unique_ptr<const Products> products_;
};

}  // namespace demo
