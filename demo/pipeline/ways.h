// The ways to send a frame through the pipeline. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frames.h"

namespace demo {

// A way is an object that processes one frame at a time. Each repetition uses a new one.
class Pipeline {
 public:
  explicit Pipeline(const Frames& frames) : frames_(frames) {}
  virtual ~Pipeline() = default;
  virtual void run(int iteration) = 0;
  // CUDA calls that the way has made so far.
  virtual std::uint64_t cuda_calls() const;
  virtual std::vector<std::pair<std::string, std::uint64_t>> outcomes() const { return {}; }

 protected:
  const Frames& frames_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Pipeline>(const Frames&)> make;
};

std::vector<Kind> kinds();

}  // namespace demo
