// A training program: a multilayer perceptron with two hidden layers learns ten classes by softmax, cross-entropy and
// Adam. A step is 13 nodes in a row. The batch is copied from pinned memory to the device; eleven short kernels compute
// the forward pass, the loss, the backward pass and the new parameters; the loss is copied back. Three nodes change in
// every step: the first copy reads another batch, the optimizer takes the scheduled learning rate and the step number
// for its bias correction, and the last copy writes the loss to another place. Five ways to run it:
//
//   eager_sync        everything enqueued by itself, and the host waits after each step
//   eager             the same, and the host does not wait
//   captured_by_hand  by hand on the raw API: captured once, and the three nodes set in the executable before each
//                     launch
//   cache_run         graphcache, with what changes as slots
//   cache_run_values  graphcache, with what changes as values: the function of `eager`, in whose graph the cache finds
//                     them
//
// Two times of each way. Total: all steps enqueued one after another, until the GPU is done, captures included. Host:
// the host time of a step, measured over batches of eight steps with the GPU idle at their start, because otherwise a
// full launch queue would make the host wait for the GPU. For eager_sync it includes the waiting. Every time is the
// median of three repetitions.
//
// Each way's loss of every step and its final parameters are compared with those of an eager run, bit by bit. The
// section "check" compares that run with expected values, in millionths: the derivatives of the host reference (double
// precision) with finite differences, and those of the device with the reference, relative to the largest derivative of
// their layer; the losses of the first 20 steps with the reference's, relative to its first loss; the distance between
// the parameters after these steps, relative to the way that the reference's have moved; and the mean loss of the last
// tenth of all steps, relative to the loss of the first step.
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
// With fewer steps, too little is learned to distinguish learning from chance.
constexpr int kFewestSteps = 50;
constexpr int kLeastBatch = 8;
constexpr int kLeastHidden = 48;
constexpr int kLargest = 1024;  // limit for the batch and the hidden layers

// The part of the first loss that is left at the end.
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
  demo::parse_flags(argc, argv, "Training steps as graphs, run five ways and compared; see the top of the source.");
  return demo::run();
}
