// The ways to train. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training.h"

namespace demo {

// A way is an object that does one step at a time. Each repetition uses a new one.
class Trainer {
 public:
  explicit Trainer(const Training& training) : training_(training) {}
  virtual ~Trainer() = default;
  virtual void run(const Step& step) = 0;
  // CUDA calls that the way has made so far, if known; for a cache, those of its hits.
  virtual std::optional<std::uint64_t> cuda_calls() const;
  // Captures by a cache so far.
  virtual std::uint64_t captures() const { return 0; }
  virtual std::vector<std::pair<std::string, std::uint64_t>> outcomes() const { return {}; }

 protected:
  const Training& training_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Trainer>(const Training&)> make;
};

std::vector<Kind> kinds();

}  // namespace demo
