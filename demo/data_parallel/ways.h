// The ways to train; the top of main.cc says what each does.
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

// A way is an object that does one step; it is made anew for each repetition.
class Trainer {
 public:
  explicit Trainer(const Replica& replica) : replica_(replica) {}
  virtual ~Trainer() = default;
  virtual void run(const Step& step, int rows) = 0;
  // A number that ranks share if they have decided alike in all steps so far; 0 where there is nothing to decide.
  virtual std::uint64_t decisions() const { return 0; }
  virtual std::optional<graphcache::Stats> stats() const { return std::nullopt; }

 protected:
  const Replica& replica_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Trainer>(const Replica&)> make;
};

// The options are those of the cache.
std::vector<Kind> kinds(const graphcache::Options& options);

}  // namespace demo
