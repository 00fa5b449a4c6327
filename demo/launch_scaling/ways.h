// The ways to launch a topology as a graph. main.cc describes each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "times.h"
#include "work.h"

namespace demo {

// A way starts with nothing, and each repetition uses a new object. It records the times of the steps that it can
// separate.
class Launcher {
 public:
  Launcher(const Work& work, Times* times) : work_(work), times_(*times) {}
  virtual ~Launcher() = default;

  // One of these two is called first, once: with a launch, or with an upload and no launch.
  virtual void first_run() = 0;
  virtual void warm() = 0;
  virtual void run() = 0;

  // CUDA calls so far, if known.
  virtual std::optional<std::uint64_t> cuda_calls() const = 0;
  // Describes how the graph or the runs differ from what should be measured; empty if they do not.
  virtual std::string defect() const = 0;

  // Records the time of `work`.
  void time(Measure measure, const std::function<void()>& work) {
    times_.time(
        measure, [this] { return cuda_calls(); }, work);
  }

 protected:
  const Work& work_;
  Times& times_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Launcher>(const Work&, Times*)> make;
};

// `raw`, then `cache`.
std::vector<Kind> kinds();

}  // namespace demo
