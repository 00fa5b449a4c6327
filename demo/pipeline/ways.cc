#include "ways.h"

#include "../support.h"
#include "graphcache/graphcache.h"
#include "kernels.h"

namespace demo {
namespace {

void launch_stir(const Frames& frames, int c, std::uint32_t salt, int round, cudaStream_t stream) {
  std::uint32_t* data = frames.chunk(c);
  int count = frames.count();
  auto with = static_cast<std::uint32_t>(round);
  void* arguments[] = {&data, &count, &salt, &with};
  DEMO_CUDA(
      cudaLaunchKernel(reinterpret_cast<const void*>(&stir), dim3(frames.grid()), dim3(kBlock), arguments, 0, stream));
}

// Everything on one stream.
class OneStream : public Pipeline {
 public:
  using Pipeline::Pipeline;
  void run(int iteration) override {
    const ChunksIn from = frames_.input(iteration);
    const ChunksOut to = frames_.output(iteration);
    for (int c = 0; c < kChunks; ++c) {
      DEMO_CUDA(cudaMemcpyAsync(frames_.chunk(c), from[c], frames_.bytes(), cudaMemcpyHostToDevice, frames_.main));
      for (int round = 0; round < frames_.rounds(); ++round) {
        launch_stir(frames_, c, Frames::salt(iteration), round, frames_.main);
      }
      DEMO_CUDA(cudaMemcpyAsync(to[c], frames_.chunk(c), frames_.bytes(), cudaMemcpyDeviceToHost, frames_.main));
    }
  }
};

// The order of a frame's work on three streams. `copy_in(c)`, `work(c, round)` and `copy_out(c)` enqueue on the streams
// of their names.
template <class CopyIn, class Work, class CopyOut>
void enqueue(const Frames& frames, const CopyIn& copy_in, const Work& work, const CopyOut& copy_out) {
  frames.order(Frames::kFork, frames.main, frames.copies_in);
  for (int c = 0; c < kChunks; ++c) {
    copy_in(c);
    frames.order(Frames::arrived(c), frames.copies_in, frames.main);
    for (int round = 0; round < frames.rounds(); ++round) work(c, round);
    frames.order(Frames::worked(c), frames.main, frames.copies_out);
    copy_out(c);
  }
  frames.order(Frames::kJoin, frames.copies_out, frames.main);
}

class Streams : public Pipeline {
 public:
  using Pipeline::Pipeline;
  void run(int iteration) override {
    const ChunksIn from = frames_.input(iteration);
    const ChunksOut to = frames_.output(iteration);
    const auto copy = [&](void* target, const void* source, cudaMemcpyKind kind, cudaStream_t stream) {
      DEMO_CUDA(cudaMemcpyAsync(target, source, frames_.bytes(), kind, stream));
    };
    enqueue(
        frames_, [&](int c) { copy(frames_.chunk(c), from[c], cudaMemcpyHostToDevice, frames_.copies_in); },
        [&](int c, int round) { launch_stir(frames_, c, Frames::salt(iteration), round, frames_.main); },
        [&](int c) { copy(to[c], frames_.chunk(c), cudaMemcpyDeviceToHost, frames_.copies_out); });
  }
};

// Captured once. Before each launch every node that has changed is set.
class CapturedByHand : public Streams {
 public:
  using Streams::Streams;
  ~CapturedByHand() override {
    DEMO_CUDA(cudaGraphExecDestroy(exec_));
    DEMO_CUDA(cudaGraphDestroy(graph_));
  }
  void run(int iteration) override {
    if (exec_ == nullptr) {
      capture(iteration);
    } else {
      set(iteration);
    }
    DEMO_CUDA(cudaGraphLaunch(exec_, frames_.main));
  }

 private:
  void capture(int iteration) {
    const ChunksIn from = frames_.input(iteration);
    const ChunksOut to = frames_.output(iteration);
    DEMO_CUDA(cudaStreamBeginCapture(frames_.main, cudaStreamCaptureModeThreadLocal));
    enqueue(
        frames_,
        [&](int c) {
          DEMO_CUDA(
              cudaMemcpyAsync(frames_.chunk(c), from[c], frames_.bytes(), cudaMemcpyHostToDevice, frames_.copies_in));
          in_.push_back(last_captured_node(frames_.copies_in));
        },
        [&](int c, int round) {
          launch_stir(frames_, c, Frames::salt(iteration), round, frames_.main);
          work_.push_back(last_captured_node(frames_.main));
        },
        [&](int c) {
          DEMO_CUDA(
              cudaMemcpyAsync(to[c], frames_.chunk(c), frames_.bytes(), cudaMemcpyDeviceToHost, frames_.copies_out));
          out_.push_back(last_captured_node(frames_.copies_out));
        });
    DEMO_CUDA(cudaStreamEndCapture(frames_.main, &graph_));
    DEMO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  }

  void set(int iteration) {
    const ChunksIn from = frames_.input(iteration);
    const ChunksOut to = frames_.output(iteration);
    std::size_t node = 0;
    for (int c = 0; c < kChunks; ++c) {
      DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, in_[c], frames_.chunk(c), from[c], frames_.bytes(),
                                                   cudaMemcpyHostToDevice));
      for (int round = 0; round < frames_.rounds(); ++round) {
        std::uint32_t* data = frames_.chunk(c);
        int count = frames_.count();
        std::uint32_t salt = Frames::salt(iteration);
        auto with = static_cast<std::uint32_t>(round);
        void* arguments[] = {&data, &count, &salt, &with};
        cudaKernelNodeParams params{};
        params.func = reinterpret_cast<void*>(&stir);
        params.gridDim = dim3(frames_.grid());
        params.blockDim = dim3(kBlock);
        params.kernelParams = arguments;
        DEMO_CUDA(cudaGraphExecKernelNodeSetParams(exec_, work_[node++], &params));
      }
      DEMO_CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec_, out_[c], to[c], frames_.chunk(c), frames_.bytes(),
                                                   cudaMemcpyDeviceToHost));
    }
  }

  std::vector<cudaGraphNode_t> in_, work_, out_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

class CacheRun : public Pipeline {
 public:
  using Pipeline::Pipeline;
  void run(int iteration) override {
    using In = graphcache::Slot<const std::uint32_t*>;
    using Out = graphcache::Slot<std::uint32_t*>;
    const ChunksIn from = frames_.input(iteration);
    const ChunksOut to = frames_.output(iteration);
    const auto outcome = cache_.run(
        key_, frames_.main, graphcache::params(Frames::salt(iteration), from[0], from[1], from[2], to[0], to[1], to[2]),
        [this](graphcache::Recorder& rec, graphcache::Slot<std::uint32_t> salt, In from_0, In from_1, In from_2,
               Out to_0, Out to_1, Out to_2) {
          const In sources[] = {from_0, from_1, from_2};
          const Out targets[] = {to_0, to_1, to_2};
          enqueue(
              frames_,
              [&](int c) {
                rec.on(frames_.copies_in).memcpy(frames_.chunk(c), sources[c], frames_.bytes(), cudaMemcpyHostToDevice);
              },
              [&](int c, int round) {
                rec.launch(stir, {frames_.grid(), kBlock}, frames_.chunk(c), frames_.count(), salt,
                           static_cast<std::uint32_t>(round));
              },
              [&](int c) {
                rec.on(frames_.copies_out)
                    .memcpy(targets[c], frames_.chunk(c), frames_.bytes(), cudaMemcpyDeviceToHost);
              });
        });
    check(outcome.status());
  }
  // On a hit: one launch, and one call for each patched node, or for all nodes that the device sets.
  std::uint64_t cuda_calls() const override { return runtime_calls().value_or(0); }
  std::vector<std::pair<std::string, std::uint64_t>> outcomes() const override {
    return outcome_counts(cache_.stats());
  }

 private:
  static_assert(kChunks == 3, "each chunk's pointers are slots of their own");
  graphcache::Cache cache_;
  const graphcache::Key key_ = graphcache::key("pipeline", frames_.count(), frames_.rounds());
};

template <class T>
Kind kind(const char* name) {
  return {name, [](const Frames& frames) -> std::unique_ptr<Pipeline> { return std::make_unique<T>(frames); }};
}

}  // namespace

std::uint64_t Pipeline::cuda_calls() const { return raw_calls(); }

std::vector<Kind> kinds() {
  return {kind<OneStream>("one_stream"), kind<Streams>("streams"), kind<CapturedByHand>("captured_by_hand"),
          kind<CacheRun>("cache_run")};
}

}  // namespace demo
