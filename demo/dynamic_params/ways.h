// The loop and the ways to run it. main.cc describes each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace demo {

inline constexpr int kCount = 32;  // elements of the buffer: one block of one warp

struct Loop {
  int nodes;
  int dynamic;
  std::uint32_t* state;
  cudaStream_t stream;

  // The dynamic nodes are the last ones.
  bool is_dynamic(int node) const { return node >= nodes - dynamic; }
  // The value of a node that is not dynamic.
  static float fixed(int node) { return 1.0f + static_cast<float>(node); }
  static float changing(int iteration) { return 1.0f + 0.001f * static_cast<float>(iteration); }
  static std::uint32_t salt(int node) { return 2u * static_cast<std::uint32_t>(node) + 1u; }

  void launch(cudaStream_t on, int node, float value) const;
  // All nodes, the dynamic ones with `value`.
  void launch_all(cudaStream_t on, float value) const;
};

// A way is an object that does one iteration at a time. Each repetition uses a new one.
class Iteration {
 public:
  explicit Iteration(const Loop& loop) : loop_(loop) {}
  virtual ~Iteration() = default;
  virtual void run(int iteration) = 0;
  // CUDA calls that the way has made so far, if known.
  virtual std::optional<std::uint64_t> cuda_calls() const;
  virtual std::vector<std::pair<std::string, std::uint64_t>> outcomes() const { return {}; }

 protected:
  const Loop& loop_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Iteration>(const Loop&)> make;
  bool follows = true;  // false if the dynamic float stays that of iteration 0
};

// The five ways of the program.
std::vector<Kind> kinds();
// The ways of a sweep: the five, the cache with the value in device memory, and `static_replay`.
std::vector<Kind> sweep_kinds();

}  // namespace demo
