// The training program: a multilayer perceptron with two hidden layers that learns ten classes by softmax,
// cross-entropy and Adam. A step is 13 nodes in a row: the batch is copied from pinned memory to the device; eleven
// short kernels go forward, take the loss, go backward, and move the parameters; the loss is copied back. Three of the
// nodes change with every step: the first copy reads another batch, the optimizer takes the learning rate of a schedule
// and the number of the step, by which it corrects its averages, and the last copy writes the loss to another place.
// Four ways to run it:
//
//   eager_sync        everything enqueued by itself, and the host waits after each step
//   eager             the same, and the host does not wait
//   captured_by_hand  by hand on the raw API: captured once, and the three nodes set in the executable before each
//                     launch
//   cache_run         graphcache, with what changes as slots
//
// Two times of each way. Total: all steps enqueued one after another, until the GPU is done; captures are part of it.
// Host: the host's part of a step, measured over batches of eight steps with the GPU idle at their start, because in
// the long run a full launch queue makes the host wait for the GPU whatever it does itself. That of eager_sync has its
// waiting in it. Every time is the median of three repetitions.
//
// Each way's loss of every step and its parameters at the end are compared with those of an eager run, bit by bit. The
// section "check" compares that run with what it should be, in parts of a million: the derivatives of the host
// reference (double precision) with finite differences, those of the device with the reference, each layer's as a part
// of its largest; the losses of the first 20 steps with the reference's, as parts of its first; the distance between
// the parameters behind them as a part of the way that the reference's have gone; and the mean loss of the last tenth
// of all steps as a part of the first step's.
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "../support.h"
#include "measure.h"
#include "reference.h"

ABSL_FLAG(std::optional<int>, steps, std::nullopt,
          "steps, at least 50; by default 5000 on a GPU, and 200 on hostrt, which executes kernels on the CPU");
ABSL_FLAG(int, batch, 32, "examples of a batch, from 8 to 1024");
ABSL_FLAG(int, hidden, 64, "width of the two hidden layers, from 48 to 1024");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kGpuSteps = 5000;
constexpr int kHostrtSteps = 200;
// With less, too little is learned to tell learning from luck.
constexpr int kFewestSteps = 50;
constexpr int kLeastBatch = 8;
constexpr int kLeastHidden = 48;
constexpr int kLargest = 1024;  // Of the batch and of the hidden layers.

// How much of the first loss is left at the end.
Check check_learning(const std::vector<float>& losses) {
  const auto last = static_cast<std::ptrdiff_t>(losses.size() / 10);
  const double end = std::accumulate(losses.end() - last, losses.end(), 0.0) / static_cast<double>(last);
  return {"loss_left", end / static_cast<double>(losses.front()), 1.0 / 3};
}

int run() {
  const bool gpu = on_gpu();
  const int steps = absl::GetFlag(FLAGS_steps).value_or(gpu ? kGpuSteps : kHostrtSteps);
  const Shape shape{absl::GetFlag(FLAGS_batch), absl::GetFlag(FLAGS_hidden)};
  if (steps < kFewestSteps || shape.batch < kLeastBatch || shape.hidden < kLeastHidden ||
      std::max(shape.batch, shape.hidden) > kLargest) {
    absl::FPrintF(stderr, "--steps must be at least %d, --batch from %d and --hidden from %d to %d\n", kFewestSteps,
                  kLeastBatch, kLeastHidden, kLargest);
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);
  Report report;
  report.demo = "train_step";
  report.machine = announce();
  report.parameters = {{"steps", steps}, {"batch", shape.batch}, {"hidden", shape.hidden}};
  report.reference = "the eager run's";
  absl::PrintF("%d steps of %d examples, a network of %d-%d-%d-%d with %d parameters\n", steps, shape.batch, kInputs,
               shape.hidden, shape.hidden, kClasses, shape.all_parameters());

  const Training training(shape, steps);
  std::vector<Check> checks = check_first_steps(training);
  const Trained expected = train_eagerly(training);
  checks.push_back(check_learning(expected.losses));
  report.ways = measure(training, expected, &report.equal);
  report.sections = {section_of(checks, /*decimals=*/3, &report.equal)};
  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv, "Training steps as graphs, run four ways and compared; see the top of the source.");
  return demo::run();
}
