#include "measure.h"

#include <absl/strings/str_format.h>

#include <memory>
#include <string>

#include "../support.h"

namespace demo {
namespace {

constexpr int kRepeats = 10;  // repeated launches of one repetition
constexpr int kAhead = 8;     // runs that keep the GPU busy while the measured one is enqueued

// From the end of the preceding work to the end of the run, by events. Makes kAhead + 1 runs.
double device_us(const Work& work, Launcher* launcher) {
  cudaEvent_t begin = nullptr, end = nullptr;
  float ms = 0;
  DEMO_CUDA(cudaEventCreate(&begin));
  DEMO_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < kAhead; ++i) launcher->run();
  DEMO_CUDA(cudaEventRecord(begin, work.stream()));
  launcher->run();
  DEMO_CUDA(cudaEventRecord(end, work.stream()));
  work.synchronize();
  DEMO_CUDA(cudaEventElapsedTime(&ms, begin, end));
  DEMO_CUDA(cudaEventDestroy(end));
  DEMO_CUDA(cudaEventDestroy(begin));
  return 1000.0 * ms;
}

// From nothing to the repeated launch. Returns the number of runs made.
int measure_runs(const Work& work, Launcher* launcher, Times* times) {
  launcher->time(kFirstEndToEnd, [&] {
    launcher->time(kFirstRun, [&] { launcher->first_run(); });
    work.synchronize();
  });
  for (int i = 0; i < kRepeats; ++i) {
    launcher->time(kEndToEnd, [&] {
      launcher->time(kRepeatLaunch, [&] { launcher->run(); });
      work.synchronize();
    });
  }
  times->add(kDevice, device_us(work, launcher));
  return 1 + kRepeats + kAhead + 1;
}

int measure_warmed(const Work& work, Launcher* launcher) {
  launcher->time(kWarm, [&] { launcher->warm(); });
  work.synchronize();
  launcher->time(kUploadedLaunch, [&] { launcher->run(); });
  work.synchronize();
  return 1;
}

bool measure_once(const Work& work, const Kind& kind, Times* times) {
  work.clear();
  int runs = 0;
  bool whole = true;
  for (const bool warmed : {false, true}) {
    const std::unique_ptr<Launcher> launcher = kind.make(work, times);
    runs += warmed ? measure_warmed(work, launcher.get()) : measure_runs(work, launcher.get(), times);
    const std::string defect = launcher->defect();
    if (defect.empty()) continue;
    absl::FPrintF(stderr, "%s, %s: %s\n", work.topology().name, kind.name, defect);
    whole = false;
  }
  return work.equals(runs, kind.name) && whole;
}

}  // namespace

std::vector<Figures> measure(const Work& work, const std::vector<Kind>& kinds, int iterations, bool* equal) {
  std::vector<Times> times(kinds.size());
  // The first repetition of each way loads the kernel and the driver's own memory, and is dropped.
  for (int iteration = 0; iteration <= iterations; ++iteration) {
    for (std::size_t turn = 0; turn < kinds.size(); ++turn) {
      const std::size_t i = (turn + static_cast<std::size_t>(iteration)) % kinds.size();
      Times warm_up;
      if (!measure_once(work, kinds[i], iteration == 0 ? &warm_up : &times[i])) *equal = false;
    }
  }
  std::vector<Figures> figures;
  for (const Times& of_way : times) figures.push_back(of_way.figures());
  return figures;
}

}  // namespace demo
