// The ways to launch a topology as a graph; the top of main.cc says what each does.
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

// An object of a way begins with nothing and is made anew for each repetition. It keeps the times of the steps
// that it knows apart.
class Launcher {
 public:
  Launcher(const Work& work, Times* times) : work_(work), times_(*times) {}
  virtual ~Launcher() = default;

  // Either of the two comes first, once: with a launch, or uploaded and without one.
  virtual void first_run() = 0;
  virtual void warm() = 0;
  virtual void run() = 0;

  // CUDA calls so far, where they are known.
  virtual std::optional<std::uint64_t> cuda_calls() const = 0;
  // Empty, or in which respect the graph or the runs were not what is measured here.
  virtual std::string defect() const = 0;

  // Keeps the time of `work`.
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
