// The ways to run the loop. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/cache.h"
#include "loop.h"

namespace demo {

struct Counters {
  std::uint64_t captures = 0;
  std::uint64_t instantiations = 0;
  std::uint64_t updates = 0;
  std::uint64_t live_executables = 0;
  std::uint64_t device_bytes = 0;  // an estimate
};

// A way is an object that does one iteration at a time. Each pass over the requests uses a new one.
class Iteration {
 public:
  explicit Iteration(const Loop& loop) : loop_(loop) {}
  virtual ~Iteration() = default;

  virtual void run(const Request& request) = 0;
  virtual Counters counters() const = 0;
  // CUDA calls that the way itself has made so far, if it counts them.
  virtual std::optional<std::uint64_t> cuda_calls() const;
  // The cache, if the way uses one.
  virtual const graphcache::Cache* cache() const { return nullptr; }

 protected:
  const Loop& loop_;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Iteration>(const Loop&)> make;
};

// All ways. `executables` is the limit of those that have one.
std::vector<Kind> kinds(int executables, int buckets);

// A way that uses a cache with these options.
Kind cache_kind(const std::string& name, const graphcache::Options& options);

}  // namespace demo
