// The ways to send a frame through the pipeline; the top of main.cc says what each does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frames.h"

namespace demo {

// An object that does a frame each time; it is made anew for each repetition.
class Pipeline {
 public:
  explicit Pipeline(const Frames& frames) : frames_(frames) {}
  virtual ~Pipeline() = default;
  virtual void run(int iteration) = 0;
  // CUDA calls that it has made so far.
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
