// Steps whose input pointer and factor change in each run, on a GPU: values [--json FILE] [ROUNDS].
//
// `plain` is a step of 64 kernels that all take both. `cublas` is a step of 16 products of cuBLAS in bfloat16, each
// with a kernel behind it. The ways:
//
//   direct  the calls themselves
//   update  capture in each step, and update of one executable
//   slots   Cache::run with params, the kernels by Recorder::launch; cuBLAS reads a buffer that the input is copied to
//   values  Cache::run with values; `fn` is what `direct` calls
//
// The ways take turns with batches of eight steps, and the GPU is idle at the start of each, so the time is the host's:
// medians of the rounds, and the 99th percentile of the single steps. All ways must leave the same results.
#include <cuda_runtime_api.h>
#include <library_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "../../demo/cublas.h"
#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

namespace test = graphcache::test;

constexpr int kBatch = 8;
constexpr int kN = 256;      // Rows and columns of a product.
constexpr int kColumns = 8;  // Of the input.
constexpr int kInputs = 24;  // As many buffers take turns.
constexpr std::size_t kInputBytes = sizeof(std::uint16_t) * kN * kColumns;

template <class T>
T* allocate(std::size_t count) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, count * sizeof(T)));
  CHECK(cudaMemset(memory, 0, count * sizeof(T)));
  return static_cast<T*>(memory);
}

// What a way writes.
struct Results {
  float* sum = allocate<float>(kN);
  std::uint16_t* product = allocate<std::uint16_t>(std::size_t{kN} * kColumns);
  float* staged = allocate<float>(kInputBytes / sizeof(float));

  std::vector<float> read() const {
    std::vector<float> all(kN + kInputBytes / sizeof(float));
    CHECK(cudaMemcpy(all.data(), sum, kN * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(all.data() + kN, product, kInputBytes, cudaMemcpyDeviceToHost));
    return all;
  }
};

struct Inputs {
  Inputs() {
    std::vector<std::uint16_t> numbers(std::size_t{kN} * kN);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(0x3c00 + i * 7 % 256);
    weights = allocate<std::uint16_t>(numbers.size());
    CHECK(cudaMemcpy(weights, numbers.data(), numbers.size() * 2, cudaMemcpyHostToDevice));
    for (int i = 0; i < kInputs; ++i) {
      inputs.push_back(allocate<float>(kInputBytes / sizeof(float)));
      CHECK(cudaMemcpy(inputs.back(), numbers.data() + i, kInputBytes, cudaMemcpyHostToDevice));
    }
  }

  std::uint16_t* weights = nullptr;
  std::vector<float*> inputs;
};

class Step {
 public:
  Step(const Inputs& inputs, const demo::Cublas* cublas, cudaStream_t stream) : inputs_(inputs), cublas_(cublas) {
    if (cublas == nullptr) return;
    must(cublas->create(&handle_));
    must(cublas->set_stream(handle_, stream));
    must(cublas->set_workspace(handle_, workspace_, demo::Cublas::kWorkspaceBytes));
  }

  void enqueue(cudaStream_t stream, const float* input, float factor, const Results& to) const {
    for (int i = 0; i < layers(); ++i) {
      if (cublas_ != nullptr) multiply(input, to);
      CHECK(test::launch(test::axpy, 1, kN, stream, to.sum, input, kN, factor));
    }
  }
  void record(graphcache::Recorder& rec, graphcache::Slot<const float*> input, graphcache::Slot<float> factor,
              const Results& to) const {
    if (cublas_ != nullptr) rec.memcpy(to.staged, input, kInputBytes);
    for (int i = 0; i < layers(); ++i) {
      if (cublas_ != nullptr) multiply(to.staged, to);
      rec.launch(test::axpy, {1, kN}, to.sum, input, kN, factor);
    }
  }

 private:
  static void must(int code) {
    if (code == 0) return;
    std::fprintf(stderr, "cuBLAS: %d\n", code);
    std::exit(1);
  }
  int layers() const { return cublas_ != nullptr ? 16 : 64; }
  void multiply(const void* input, const Results& to) const {
    const float alpha = 1, beta = 0;
    must(cublas_->gemm(handle_, demo::Cublas::kTransposed, demo::Cublas::kAsItIs, kN, kColumns, kN, &alpha,
                       inputs_.weights, CUDA_R_16BF, kN, input, CUDA_R_16BF, kN, &beta, to.product, CUDA_R_16BF, kN,
                       demo::Cublas::kInFloat, demo::Cublas::kAnyAlgorithm));
  }

  const Inputs& inputs_;
  const demo::Cublas* const cublas_;
  demo::Cublas::Handle handle_ = nullptr;
  char* workspace_ = allocate<char>(demo::Cublas::kWorkspaceBytes);
};

double percentile_99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void measure(bench::Report& report, const char* name, const Inputs& inputs, const demo::Cublas* cublas, int rounds) {
  cudaStream_t stream = bench::new_stream();
  const Step step(inputs, cublas, stream);
  graphcache::Cache by_slots, by_values;
  const graphcache::Key key = graphcache::key(name);
  cudaGraphExec_t exec = nullptr;
  bool right = true;

  struct Way {
    const char* name;
    std::function<void(const float*, float, const Results&)> run;
    Results to = {};
    std::vector<double> batches = {}, steps = {};
  };
  std::vector<Way> ways;
  ways.push_back({"direct", [&](const float* input, float factor, const Results& to) {
                    step.enqueue(stream, input, factor, to);
                  }});
  ways.push_back({"update", [&](const float* input, float factor, const Results& to) {
                    cudaGraph_t graph = nullptr;
                    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                    step.enqueue(stream, input, factor, to);
                    CHECK(cudaStreamEndCapture(stream, &graph));
                    cudaGraphExecUpdateResultInfo info;
                    if (exec == nullptr) {
                      CHECK(cudaGraphInstantiate(&exec, graph, 0));
                    } else {
                      CHECK(cudaGraphExecUpdate(exec, graph, &info));
                    }
                    CHECK(cudaGraphLaunch(exec, stream));
                    CHECK(cudaGraphDestroy(graph));
                  }});
  ways.push_back({"slots", [&](const float* input, float factor, const Results& to) {
                    right &= by_slots
                                 .run(key, stream, graphcache::params(input, factor),
                                      [&](graphcache::Recorder& rec, graphcache::Slot<const float*> in,
                                          graphcache::Slot<float> f) { step.record(rec, in, f, to); })
                                 .ok();
                  }});
  ways.push_back({"values", [&](const float* input, float factor, const Results& to) {
                    right &= by_values
                                 .run(key, stream, graphcache::values(input, factor),
                                      [&](cudaStream_t on, const float* in, float f) { step.enqueue(on, in, f, to); })
                                 .ok();
                  }});

  for (int round = -6; round < rounds; ++round) {  // Negative rounds are a warm-up, in which values are found.
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Way& way = ways[(i + static_cast<std::size_t>(round + 6)) % ways.size()];  // Each way comes first in turn.
      CHECK(cudaStreamSynchronize(stream));
      double sum = 0;
      for (int run = 0; run < kBatch; ++run) {
        const int which = (round + 6) * kBatch + run;
        const float* const input = inputs.inputs[static_cast<std::size_t>(which % kInputs)];
        const float factor = 0.5f + static_cast<float>(which % 7) / 16;
        const double ns = bench::nanoseconds([&] { way.run(input, factor, way.to); });
        sum += ns;
        if (round >= 0) way.steps.push_back(ns);
      }
      if (round >= 0) way.batches.push_back(sum / kBatch);
    }
  }
  CHECK(cudaDeviceSynchronize());
  for (const Way& way : ways) right &= way.to.read() == ways.front().to.read();
  std::printf("%s: captures by slots %llu, by values %llu; results %s\n", name,
              static_cast<unsigned long long>(by_slots.stats().captures),
              static_cast<unsigned long long>(by_values.stats().captures), right ? "right" : "WRONG");
  if (!right) std::exit(1);
  for (const Way& way : ways) {
    std::printf("  %-7s host %8.2f us a step, p99 %8.2f us, %.3f of direct\n", way.name,
                bench::median(way.batches) / 1000, percentile_99(way.steps) / 1000,
                bench::median(way.batches) / bench::median(ways.front().batches));
    report.add({"values",
                {{"work", name}, {"way", way.name}},
                "ns",
                bench::median(way.batches),
                ways[0].name,
                bench::median(ways[0].batches)});
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 200);
  const Inputs inputs;
  measure(report, "plain", inputs, nullptr, rounds);
  if (const demo::Cublas* const cublas = demo::Cublas::get()) measure(report, "cublas", inputs, cublas, rounds);
  return report.write();
}
