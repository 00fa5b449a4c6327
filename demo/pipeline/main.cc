// A pipeline on three streams. A frame is in pinned host memory. Its chunks are copied to the device, processed by a
// few kernels, and copied back, so that different steps of different chunks overlap. The frame's buffers, and a number
// that the kernels take, change from frame to frame. Four ways:
//
//   one_stream        every copy and kernel enqueued on one stream: nothing overlaps
//   streams           the same over three streams, ordered by events (fork and join)
//   captured_by_hand  captured once on the raw API; before each launch every node is set to the frame's values
//   cache_run         graphcache: pointers and number are slots
//
// Two times of each way, as in dynamic_params, and the GPU time: microseconds of a frame, between two events around all
// of them. One table shows the diamond of the CUDA guide (A, then B and C, then D) by the explicit API, by capture and
// by the cache. Another one shows calls that a capture forbids, with the error that the cache reports, and whether the
// work was done.
#include <absl/flags/flag.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "../support.h"
#include "diamond.h"
#include "forbidden.h"
#include "frames.h"
#include "ways.h"

ABSL_FLAG(int, elements, 1 << 16, "4-byte elements of a chunk; a frame has three chunks");
ABSL_FLAG(int, rounds, 4, "kernels that work on a chunk, one after another");
ABSL_FLAG(std::optional<int>, iterations, std::nullopt, "frames, by default 2000 on a GPU and 5 on hostrt");
ABSL_FLAG(std::string, json, "", "file to write the results to");

namespace demo {
namespace {

constexpr int kRepetitions = 5;
constexpr int kBatch = 8;
constexpr int kBatches = 50;

struct Samples {
  std::vector<double> host_us, total_ms, gpu_us;
};

// One repetition of one way: all frames, then the host time of some.
bool measure(const Kind& kind, Frames& frames, int iterations, Samples* samples, Way* way) {
  auto pipeline = kind.make(frames);
  cudaEvent_t begin = nullptr, end = nullptr;
  DEMO_CUDA(cudaEventCreate(&begin));
  DEMO_CUDA(cudaEventCreate(&end));
  frames.clear_outputs();
  samples->total_ms.push_back(microseconds([&] {
                                DEMO_CUDA(cudaEventRecord(begin, frames.main));
                                for (int i = 0; i < iterations; ++i) pipeline->run(i);
                                DEMO_CUDA(cudaEventRecord(end, frames.main));
                                DEMO_CUDA(cudaStreamSynchronize(frames.main));
                              }) /
                              1000);
  float gpu_ms = 0;
  DEMO_CUDA(cudaEventElapsedTime(&gpu_ms, begin, end));
  samples->gpu_us.push_back(1000.0 * gpu_ms / iterations);
  DEMO_CUDA(cudaEventDestroy(begin));
  DEMO_CUDA(cudaEventDestroy(end));
  way->outcomes = pipeline->outcomes();
  bool equal = frames.equals_reference(iterations, kind.name, "all frames");

  frames.clear_outputs();
  const int batches = std::clamp(iterations / kBatch, 1, kBatches);
  std::uint64_t calls = 0;
  for (int batch = 0; batch < batches; ++batch) {
    const std::uint64_t before = pipeline->cuda_calls();
    samples->host_us.push_back(microseconds([&] {
                                 for (int i = 0; i < kBatch; ++i) pipeline->run(batch * kBatch + i);
                               }) /
                               kBatch);
    calls += pipeline->cuda_calls() - before;
    DEMO_CUDA(cudaStreamSynchronize(frames.main));
  }
  if (calls != 0) way->cuda_calls_per_iteration = static_cast<double>(calls) / (batches * kBatch);
  return frames.equals_reference(batches * kBatch, kind.name, "batches") && equal;
}

std::vector<Way> measure_all(Frames& frames, int iterations, bool* equal) {
  const std::vector<Kind> all = kinds();
  std::vector<Samples> samples(all.size());
  std::vector<Way> ways(all.size());
  repeat_in_shuffled_order(all.size(), kRepetitions, [&](std::size_t i) {
    *equal = measure(all[i], frames, iterations, &samples[i], &ways[i]) && *equal;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    ways[i].name = all[i].name;
    ways[i].host_us = median(samples[i].host_us);
    ways[i].total_ms = median(samples[i].total_ms);
    ways[i].columns = {{"gpu_us", median(samples[i].gpu_us), 2, true}};
  }
  return ways;
}

int run() {
  const int elements = absl::GetFlag(FLAGS_elements), rounds = absl::GetFlag(FLAGS_rounds);
  const int iterations = absl::GetFlag(FLAGS_iterations).value_or(on_gpu() ? 2000 : 5);
  if (elements < 1 || rounds < 1 || iterations < 1) {
    absl::FPrintF(stderr, "--elements, --rounds and --iterations must be at least 1\n");
    return 2;
  }
  const std::string json = absl::GetFlag(FLAGS_json);
  if (!json.empty()) check_writable(json);
  Report report;
  report.demo = "pipeline";
  report.machine = announce();
  report.parameters = {{"elements", elements}, {"rounds", rounds}, {"iterations", iterations}};
  absl::PrintF("%d frames of %d chunks, each copied in, worked on by %d kernels, copied out\n", iterations, kChunks,
               rounds);
  {
    Frames frames(elements, rounds);
    report.ways = measure_all(frames, iterations, &report.equal);
  }
  report.sections.push_back(diamond(&report.equal));
  report.sections.push_back(forbidden(&report.equal));
  return report.finish(json);
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv,
                    "A pipeline over three streams, run four ways and compared; see the top of the source.");
  return demo::run();
}
