// graphcache for programs on PyTorch (libtorch): a cache whose captures PyTorch's allocator and random generators know
// of, and whose runs follow PyTorch's current stream.
//
//   graphcache::TorchCache cache;
//   absl::StatusOr<graphcache::Outcome> outcome =
//       cache.run(graphcache::key("decode", batch), [&] { model.forward(tokens, out); });
//
// Without it, a capture takes temporaries from memory that PyTorch believes to be free afterwards, and gives to other
// tensors. A replay then overwrites these.
//
// Memory. What `fn` allocates during its capture comes from a pool of the cache, in PyTorch's allocator. Temporaries go
// back to that pool when `fn` drops them, and later captures take them again. So the keys of a cache share temporaries,
// and must not run at the same time: all runs of the cache are on one stream, and a run on another one is an error.
// With TorchCache::Pools::kOnePerKey, each key has a pool of its own, and runs may be on any stream. A workspace of
// cuBLAS belongs to a pool as well. A tensor that `fn` allocates and hands out stays where it is, and each replay
// writes it anew. With the shared pool, the replay of another key would overwrite it, unless it was allocated behind
// TorchCache::begin_results(). So a capture that leaves such a tensor is given up: this run calls `fn` directly, as
// after other failures under capture, and the key is captured again later, with a pool of its own. That direct call
// must not read what the capture has left, because nothing was computed there. State that `fn` makes once, such as a
// mask, is made directly if Options::capture_after is 1.
//
// Random numbers. The device's default generator, and those given to register_generator(), advance with each replay as
// they would with a direct call of `fn`. If one thread draws, on one stream, the results are equal, bit by bit.
//
// Threads. As for graphcache::Cache. PyTorch allows one capture at a time in a process, so captures of several threads
// wait for each other. Meanwhile other threads must not draw from the generators. A cache may be destroyed anywhere:
// what is destroyed inside a capture is kept until the capture is over. In a child process that was forked, caches of
// the parent are of no use: their runs are errors.
//
// Needs PyTorch 2.8 to 2.15, built for CUDA.
#pragma once

#include <ATen/cuda/CUDAGraph.h>
#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <graphcache/graphcache.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "graphcache_torch_state.h"

namespace graphcache {
class TorchCache {
 public:
  enum class Pools { kShared, kOnePerKey };

  // Listeners of `options` are called as usual. Its stream is not used: runs are on PyTorch's current stream of the
  // device. Throws c10::Error if PyTorch has no such device, or an allocator without memory pools (cudaMallocAsync).
  explicit TorchCache(Options options = {}, Pools pools = Pools::kShared)
      : state_(std::make_shared<torch_detail::State>(device_of(options), pools == Pools::kShared)),
        cache_(std::make_unique<Cache>(with_listener(std::move(options), state_))) {}
  // Inside a capture of this thread, what is left of the cache is destroyed after it. Does nothing in a child process
  // of the one that made the cache.
  ~TorchCache() {
    torch_detail::Parts parts{std::move(state_), std::move(cache_), {}};
    if (!parts.state->is_of_this_process()) {
      static_cast<void>(new torch_detail::Parts(std::move(parts)));
      return;
    }
    const auto device = static_cast<c10::DeviceIndex>(parts.cache->options().device);
    torch_detail::Waiting::add(std::move(parts));
    torch_detail::Waiting::destroy(device);
  }
  TorchCache(const TorchCache&) = delete;
  TorchCache& operator=(const TorchCache&) = delete;

  // Runs `fn`, which takes nothing, on PyTorch's current stream of the cache's device: a replay where the key has a
  // graph, else a capture or a direct call (Cache::run). During a capture, PyTorch's current stream is part of
  // it. A key belongs to one type of `fn`: do not run it with two. Tensors that `fn` uses, and that it does not
  // allocate itself, must outlive the key's entry, at the same address.
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, Fn&& fn) {
    return run_given(key, Params<>(), std::forward<Fn>(fn));
  }
  // The same with values, which `fn` takes as its argument, a ListedValues (values.h): tensors that move from run to
  // run, each by its address and the memory of its storage, and numbers.
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, const ValueList& list, Fn&& fn) {
    return run_given(key, values(list), std::forward<Fn>(fn));
  }
  // The same for a graph that PyTorch has captured: make() takes nothing and returns a std::shared_ptr of a
  // torch.cuda.CUDAGraph(keep_graph=True), which the key keeps with its memory and its generators. It is called outside
  // of captures, where the cache has no graph for the key (graphcache/graph.h).
  template <class Make>
  absl::StatusOr<Outcome> run_graph(const Key& key, Make&& make) {
    return on_current_stream([&](cudaStream_t stream) {
      return cache_->run(key, stream, OfTorch<std::remove_reference_t<Make>>(*state_, key, make));
    });
  }
  // As Cache::warm. A later run finds what it has made if `fn` there is of the same type.
  template <class Fn>
  absl::Status warm(const Key& key, Fn&& fn) {
    return warm_given(key, Params<>(), std::forward<Fn>(fn));
  }
  template <class Fn>
  absl::Status warm(const Key& key, const ValueList& list, Fn&& fn) {
    return warm_given(key, values(list), std::forward<Fn>(fn));
  }

  // To be called inside `fn`: what it allocates from now on are results. With the shared pool, they lie in a pool
  // apart, where no other key's temporaries are. False if it changes nothing: outside a capture, and with a pool for
  // each key.
  bool begin_results() { return state_->begin_results(); }
  // Whether this call of `fn` is captured for this cache. False in direct calls and in runs inside another run's `fn`.
  bool captures_call() const { return torch_detail::captured_call == state_.get(); }
  // The same, if the run has captured the call before: this capture is compared, and does not run. Its values may be
  // those of an earlier run.
  bool captures_call_again() const { return captures_call() && torch_detail::captures_of_run > 1; }
  // To be called inside `fn`: keeps the object as long as the graph that is being captured (Recorder::keep).
  void keep(std::shared_ptr<void> object) { torch_detail::recorder->keep(std::move(object)); }
  // To be called inside `fn`: whether its capture has allocated the tensor. False unless captures_call().
  bool is_of_capture(const at::Tensor& tensor) { return state_->is_of_capture(tensor); }

  // Whether a capture of the key was given up because it left tensors.
  bool leaves_tensors(const Key& key) { return state_->leaves_tensors(key); }

  // False in a child process of the one that made the cache, where runs are errors.
  bool is_of_this_process() const { return state_->is_of_this_process(); }

  // For generators besides the device's default one, before the first capture that draws from them.
  void register_generator(const at::Generator& generator) { state_->register_generator(generator); }

  // Whether all keys have one pool.
  bool has_one_pool() const { return state_->has_one_pool(); }

  // Everything else. Runs by it are on the stream that they name, and are not checked to be on one stream. What their
  // `fn` leaves in use may be overwritten. With PyTorch 2.12 or newer, it cannot draw random numbers under capture.
  Cache& cache() { return *cache_; }
  const Cache& cache() const { return *cache_; }

 private:
  template <class Given, class Fn>
  absl::StatusOr<Outcome> run_given(const Key& key, const Given& given, Fn&& fn) {
    return on_current_stream([&](cudaStream_t stream) {
      bool must_capture_again = false;
      const absl::Cleanup forget = [&] {
        if (must_capture_again) cache_->erase(key);
      };
      return cache_->run(key, stream, given, OnStream<std::remove_reference_t<Fn>>(*state_, fn, &must_capture_again));
    });
  }
  template <class Given, class Fn>
  absl::Status warm_given(const Key& key, const Given& given, Fn&& fn) {
    if (!state_->is_of_this_process()) return torch_detail::State::of_another_process();
    const c10::cuda::CUDAGuard guard(device());
    const absl::Cleanup destroy = [&] { torch_detail::Waiting::destroy(device()); };
    for (bool is_first = true;; is_first = false) {
      const torch_detail::RunScope scope;
      bool must_capture_again = false;
      absl::Status status;
      try {
        status = cache_->warm(key, current_stream(), given,
                              OnStream<std::remove_reference_t<Fn>>(*state_, fn, &must_capture_again));
      } catch (...) {
        if (!must_capture_again || !is_first) throw;
      }
      if (!must_capture_again) return status;
      cache_->erase(key);
      if (!is_first) return status;
    }
  }

  static int device_of(Options& options) {
    if (options.device == Options::kCurrentDevice) options.device = c10::cuda::current_device();
    return options.device;
  }

  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(cache_->options().device); }

  template <class Run>
  absl::StatusOr<Outcome> on_current_stream(const Run& run) {
    if (!state_->is_of_this_process()) return torch_detail::State::of_another_process();
    const c10::cuda::CUDAGuard guard(device());
    const cudaStream_t stream = current_stream();
    if (absl::Status status = state_->check(stream); !status.ok()) return status;
    const torch_detail::RunScope scope;
    const absl::Cleanup destroy = [&] { torch_detail::Waiting::destroy(device()); };
    return run(stream);
  }

  cudaStream_t current_stream() const { return c10::cuda::getCurrentCUDAStream(device()).stream(); }

  // `fn` on the stream of a run. Its place in the program is that of `fn`.
  template <class Fn>
  class OnStream {
   public:
    OnStream(torch_detail::State& state, Fn& fn, bool* must_capture_again)
        : state_(state), fn_(fn), must_capture_again_(must_capture_again) {}
    auto operator()(Recorder& recorder) { return call(recorder, fn_); }
    auto operator()(Recorder& recorder, const ListedValues& values) {
      return call(recorder, [&] { return fn_(values); });
    }
    const Fn& graphcache_callee() const { return fn_; }

   private:
    template <class F>
    auto call(Recorder& recorder, F&& fn) {
      const cudaStream_t stream = recorder.stream();
      const bool captures = state_.captures_on(stream);
      const c10::cuda::CUDAStreamGuard guard(captures ? state_.enter_capture(stream) : state_.stream_of(stream));
      const auto* const outer = std::exchange(torch_detail::captured_call, captures ? &state_ : nullptr);
      Recorder* const outer_recorder = std::exchange(torch_detail::recorder, &recorder);
      if (captures) recorder.keep(state_.owner_of_capture());
      const absl::Cleanup leave = [&] {
        torch_detail::recorder = outer_recorder;
        torch_detail::captured_call = outer;
        if (captures) state_.leave_capture(stream);
      };
      if constexpr (std::is_void_v<decltype(fn())>) {
        fn();
        if (captures) state_.check_what_is_left(must_capture_again_);
      } else {
        auto result = fn();
        if (captures) state_.check_what_is_left(must_capture_again_);
        return result;
      }
    }

    torch_detail::State& state_;
    Fn& fn_;
    bool* const must_capture_again_;
  };
  // The graph that make() returns. Its place in the program is that of `make`.
  template <class Make>
  class OfTorch {
   public:
    OfTorch(torch_detail::State& state, const Key& key, Make& make) : state_(state), key_(key), make_(make) {}
    absl::StatusOr<Graph> operator()() try {
      const std::shared_ptr<at::cuda::CUDAGraph> graph = make_();
      if (graph == nullptr) return absl::InvalidArgumentError("there is no graph");
      Graph found;
      found.graph = graph->raw_cuda_graph();
      found.owner = state_.owner_of(key_, *graph, graph);
      return found;
    } catch (const c10::Error& why) {
      return absl::FailedPreconditionError(why.what_without_backtrace());
    }
    const Make& graphcache_callee() const { return make_; }

   private:
    torch_detail::State& state_;
    const Key& key_;
    Make& make_;
  };
  // Tells PyTorch of captures and launches.
  class TorchListener final : public Listener {
   public:
    explicit TorchListener(std::shared_ptr<torch_detail::State> state) : state_(std::move(state)) {}

    Wants wants() const override {
      Wants wants;  // Designated initializers are of C++20.
      wants.launches = true;
      return wants;
    }
    absl::Status begin(const CacheEvent& event) override {
      if (is_capture(event)) return state_->begin_capture(event.key, event.stream);
      if (event.kind == EventKind::kLaunch) {
        if (absl::Status status = torch_detail::prepare_launch(); !status.ok()) return status;
        return state_->before_launch(event.key, event.graph, event.stream);
      }
      return absl::OkStatus();
    }
    void end(const CacheEvent& event) override {
      if (is_capture(event)) state_->end_capture(event.graph);
    }

   private:
    // An `fn` that returns a graph has no stream.
    static bool is_capture(const CacheEvent& event) {
      return event.kind == EventKind::kCapture && event.stream != nullptr;
    }

    const std::shared_ptr<torch_detail::State> state_;
  };
  static Options with_listener(Options options, const std::shared_ptr<torch_detail::State>& state) {
    options.listeners.insert(options.listeners.begin(), std::make_shared<TorchListener>(state));
    return options;
  }

  std::shared_ptr<torch_detail::State> state_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace graphcache
