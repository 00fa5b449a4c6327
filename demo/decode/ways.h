// The ways to run steps. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graphcache/options.h"
#include "graphcache/stats.h"
#include "worker.h"

namespace demo {

using Workers = std::vector<std::unique_ptr<Worker>>;

struct Counters {
  std::uint64_t captures = 0;
  std::uint64_t instantiations = 0;
  std::uint64_t updates = 0;
  std::uint64_t live_executables = 0;
};

// A way is an object that all workers' threads share; each thread calls it for its own worker.
class Decoder {
 public:
  explicit Decoder(const Workers& workers) : workers_(workers) {}
  virtual ~Decoder() = default;

  // Prepares the way before requests are served.
  virtual void prepare(int /*worker*/) {}
  virtual void run(int worker, const Step& step) = 0;
  // Call this when all threads are done.
  virtual Counters counters() const { return {}; }
  virtual std::optional<graphcache::Stats> stats() const { return std::nullopt; }

 protected:
  const Worker& worker(int index) const { return *workers_[size(index)]; }

  const Workers& workers_;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Decoder>(const Workers&)> make;
};

// `executables` is the limit of the caches. The first kUsual ways are those that the demo runs by default.
inline constexpr std::size_t kUsual = 4;
std::vector<Kind> kinds(const graphcache::Buckets& buckets, int executables);

}  // namespace demo
