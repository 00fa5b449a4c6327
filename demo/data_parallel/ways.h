// The ways to train. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "graphcache/options.h"
#include "graphcache/stats.h"
#include "replica.h"

namespace demo {

// A way is an object that does one step at a time. Each repetition uses a new one.
class Trainer {
 public:
  explicit Trainer(const Replica& replica) : replica_(replica) {}
  virtual ~Trainer() = default;
  virtual void run(const Step& step, int rows) = 0;
  // A number that is equal on ranks that have made the same decisions so far; 0 if the way makes none.
  virtual std::uint64_t decisions() const { return 0; }
  virtual std::optional<graphcache::Stats> stats() const { return std::nullopt; }

 protected:
  const Replica& replica_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Trainer>(const Replica&)> make;
};

// `options` are those of the cache.
std::vector<Kind> kinds(const graphcache::Options& options);

}  // namespace demo
