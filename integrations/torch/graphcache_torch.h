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
// Memory. What `fn` allocates during its capture comes from a pool of the cache (at::cuda::MemPool). Temporaries go
// back to that pool when `fn` drops them, and later captures take them again. So the keys of a cache share temporaries,
// and must not run at the same time: all runs of the cache are on one stream, and a run on another one is an error.
// With TorchCache::Pools::kOnePerKey, each key has a pool of its own, and runs may be on any stream. A tensor that `fn`
// allocates and hands out stays where it is, and each replay writes it anew. With the shared pool, the replay of
// another key may overwrite it as well, unless it was allocated behind TorchCache::begin_results().
//
// Random numbers. The device's default generator, and those given to register_generator(), advance with each replay as
// they would with a direct call of `fn`. If one thread draws, on one stream, the results are equal, bit by bit.
//
// Threads. As for graphcache::Cache. PyTorch allows one capture at a time in a process, so captures of several threads
// wait for each other. Meanwhile other threads must not draw from the generators.
//
// Needs PyTorch 2.8 to 2.15, built for CUDA.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <graphcache/graphcache.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache_torch_versions.h"

namespace graphcache {
namespace torch_detail {

// What a key's launches need.
struct Record {
  // Pool of its captured memory; null if it was adopted.
  std::shared_ptr<MemPool> pool;
  // What its graph draws from generators.
  std::vector<Draws> draws;
};

struct HashOfKey {
  std::size_t operator()(const Key& key) const { return key.hash(); }
};

// The records of each key's graphs, the oldest first.
template <class R>
using Records = std::unordered_map<Key, std::deque<R>, HashOfKey>;

// Removes the oldest or the newest record of the key, and returns it. Returns an empty one if there is none.
template <class R>
R take_record(Records<R>& records, const Key& key, bool newest) {
  const auto found = records.find(key);
  if (found == records.end()) return {};
  R taken = std::move(newest ? found->second.back() : found->second.front());
  newest ? found->second.pop_back() : found->second.pop_front();
  if (found->second.empty()) records.erase(found);
  return taken;
}

inline std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}
inline thread_local bool is_capturing = false;  // whether this thread holds capture_mutex()

// The state that the hooks of one cache share.
class State {
 public:
  State(int device, bool one_pool) : device_(static_cast<c10::DeviceIndex>(device)) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // the cache may be what uses CUDA first
    TORCH_CHECK(c10::cuda::CUDACachingAllocator::name() != "cudaMallocAsync",
                "graphcache: captures need memory pools, which PyTorch's allocator cudaMallocAsync does not have: set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:native");
    if (one_pool) {
      pool_ = make_pool();
      results_ = make_pool();
    }
    register_generator(at::cuda::detail::getDefaultCUDAGenerator(device_));
  }

  void register_generator(const at::Generator& generator) {
    TORCH_CHECK(!is_capturing,
                "graphcache: a capture is under way in this thread: make caches and register generators before");
    const bool is_ours = generator.defined() && generator.device().is_cuda() &&
                         (!generator.device().has_index() || generator.device().index() == device_);
    TORCH_CHECK(is_ours, "graphcache: the generator is not one of the cache's device");
    const std::lock_guard lock(capture_mutex());
    const c10::cuda::CUDAGuard guard(device_);
    generators_.add(generator);
  }

  c10::cuda::CUDAStream stream_of(cudaStream_t stream) const {
    if (stream == nullptr || stream == cudaStreamLegacy) return c10::cuda::getDefaultCUDAStream(device_);
    return c10::cuda::getStreamFromExternal(stream, device_);
  }

  absl::Status begin_capture(cudaStream_t stream) try {
    capture_mutex().lock();
    is_capturing = true;
    // Weights that are cast in a capture are in its memory, and weights cast before it are not computed in it.
    pending_.caches_casts = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    pending_.stream = stream;
    pending_.record.pool = pool_ != nullptr ? pool_ : make_pool();
    generators_.begin_capture();
    allocate_from(pending_.record.pool);
    begin_allocator_capture(device_);
    pending_.is_marked = true;
    return absl::OkStatus();
  } catch (const std::exception& why) {
    finish();
    return absl::InternalError(absl::StrCat("PyTorch cannot prepare the capture: ", why.what()));
  }

  // To be called by `fn` on its stream, which is where PyTorch learns of the capture that has begun there.
  void enter_capture(cudaStream_t stream) {
    if constexpr (Generators::kEntersCaptures) {
      if (is_capturing && pending_.stream == stream) generators_.enter_capture(id_of_capture(stream));
    }
  }

  // Memory that this thread's capture allocates from now on is not reused by other keys. Returns false if that is the
  // case anyway.
  bool begin_results() {
    if (!is_capturing || results_ == nullptr) return false;
    if (pending_.allocating != results_) {
      stop_allocating();
      allocate_from(results_);
    }
    return true;
  }

  void end_capture(const Key& key, bool has_graph) {
    Record record = finish();
    if (has_graph) keep(key, std::move(record));
  }

  void keep(const Key& key, Record record) {
    const std::lock_guard lock(mutex_);
    if (!record.draws.empty()) draws_.store(true, std::memory_order_relaxed);
    records_[key].push_back(std::move(record));
  }

  // One graph of the key has been destroyed: the oldest, because a run that drops one and captures again reports the
  // drop last.
  void forget(const Key& key) {
    Record gone = take(key, /*newest=*/false);
    if (pool_ != nullptr || gone.pool == nullptr) return;
    const std::lock_guard lock(capture_mutex());  // the allocator frees no pool during a capture
    gone = {};
  }

  // Undoes the last keep().
  void drop(const Key& key) { take(key, /*newest=*/true); }

  // Sets the generators' values for this launch to what a direct call of `fn` would see.
  absl::Status before_launch(const Key& key, cudaStream_t stream) try {
    if (!draws_.load(std::memory_order_relaxed)) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(key);
    if (found == records_.end() || found->second.back().draws.empty()) return absl::OkStatus();
    const c10::cuda::CUDAStreamGuard guard(stream_of(stream));
    for (const Draws& draws : found->second.back().draws) draws.before_launch();
    return absl::OkStatus();
  } catch (const std::exception& why) {
    return absl::InternalError(absl::StrCat("PyTorch cannot set a generator: ", why.what()));
  }

  // Whether a run may use the stream: any stream, or that of the first run if keys share memory. Runs inside a capture
  // become part of it.
  absl::Status check(cudaStream_t stream) {
    if (pool_ == nullptr) return absl::OkStatus();
    cudaStream_t first = stream_.load(std::memory_order_relaxed);
    if (first == stream || id_of_capture(stream) != 0) return absl::OkStatus();
    if (first == kNoStream && stream_.compare_exchange_strong(first, stream)) return absl::OkStatus();
    if (first == stream) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the keys of this cache share memory for temporaries, so all of its runs are on one stream, and this run is on "
        "another one: take a cache for each stream, or Pools::kOnePerKey");
  }

 private:
  static inline const cudaStream_t kNoStream = reinterpret_cast<cudaStream_t>(~std::uintptr_t{0});

  Record take(const Key& key, bool newest) {
    const std::lock_guard lock(mutex_);
    return take_record(records_, key, newest);
  }

  std::shared_ptr<MemPool> make_pool() const {
    const c10::cuda::CUDAGuard guard(device_);
    return std::make_shared<MemPool>();
  }

  static unsigned long long id_of_capture(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
#else
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr);
#endif
    return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
  }

  void allocate_from(const std::shared_ptr<MemPool>& pool) {
    // Only the memory of this capture's streams, because other streams may allocate meanwhile.
    const auto is_of_capture = [stream = pending_.stream](cudaStream_t other) {
      return other == stream || (id_of_capture(other) != 0 && id_of_capture(other) == id_of_capture(stream));
    };
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, pool->id(), is_of_capture);
    pending_.allocating = pool;
  }
  void stop_allocating() {
    if (pending_.allocating == nullptr) return;
    const auto pool = std::exchange(pending_.allocating, nullptr);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool->id());
    // What `begin` added; the MemPool holds the pool.
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool->id());
  }

  // Ends what begin_capture has begun.
  Record finish() {
    const absl::Cleanup unlock = [this] {
      pending_ = {};
      is_capturing = false;
      capture_mutex().unlock();
    };
    at::autocast::set_autocast_cache_enabled(pending_.caches_casts);
    generators_.end_capture(&pending_.record.draws);
    if (std::exchange(pending_.is_marked, false)) end_allocator_capture(device_);
    stop_allocating();
    return std::move(pending_.record);
  }

  // The current capture. Guarded by capture_mutex().
  struct Pending {
    cudaStream_t stream = nullptr;
    std::shared_ptr<MemPool> allocating;  // pool that the capture allocates from now
    bool is_marked = false;               // whether the allocator was told of the capture
    bool caches_casts = true;             // previous setting of autocast
    Record record;
  };

  const c10::DeviceIndex device_;
  std::shared_ptr<MemPool> pool_;     // pool of all keys' temporaries; null if each key has its own
  std::shared_ptr<MemPool> results_;  // pool of all keys' results, if they share temporaries
  Generators generators_;
  Pending pending_;
  std::atomic<bool> draws_{false};  // whether any key draws random numbers
  std::atomic<cudaStream_t> stream_{kNoStream};
  std::mutex mutex_;
  Records<Record> records_;
};

}  // namespace torch_detail

class TorchCache {
 public:
  enum class Pools { kShared, kOnePerKey };

  // Hooks of `options` are called as usual. Its stream is not used: runs are on PyTorch's current stream of the device.
  // Throws c10::Error if PyTorch has no such device, or an allocator without memory pools (cudaMallocAsync).
  explicit TorchCache(Options options = {}, Pools pools = Pools::kShared)
      : state_(std::make_shared<torch_detail::State>(device_of(options), pools == Pools::kShared)),
        cache_(with_hooks(std::move(options), state_)) {}

  // Runs `fn`, which takes nothing, on PyTorch's current stream of the cache's device: a replay where the key has a
  // graph, else a capture or a direct call (Cache::run). During a capture, PyTorch's current stream is the captured
  // one. A key belongs to one type of `fn`: do not run it with two. Tensors that `fn` uses, and that it does not
  // allocate itself, must outlive the key's entry, at the same address.
  template <class Fn>
  absl::StatusOr<Outcome> run(const Key& key, Fn&& fn) {
    return on_current_stream([&](cudaStream_t stream) { return cache_.run(key, stream, on_stream(fn)); });
  }
  // Replays the graph that was adopted for the key.
  absl::StatusOr<Outcome> run(const Key& key) {
    return on_current_stream([&](cudaStream_t stream) { return cache_.run(key, stream); });
  }
  // As Cache::warm. A later run finds what it has made if `fn` there is of the same type.
  template <class Fn>
  absl::Status warm(const Key& key, Fn&& fn) {
    const c10::cuda::CUDAGuard guard(device());
    return cache_.warm(key, current_stream(), on_stream(fn));
  }

  // To be called inside `fn`: what it allocates from now on are results. With the shared pool, they lie in a pool
  // apart, where no other key's temporaries are. False if it changes nothing: outside a capture, and with a pool for
  // each key.
  bool begin_results() { return state_->begin_results(); }

  // Adopts a graph that PyTorch has captured (Cache::adopt): torch.cuda.CUDAGraph(keep_graph=True). The graph object is
  // kept until the key is erased, and with it its memory and its generators. `owner` is kept as well.
  absl::Status adopt(const Key& key, std::shared_ptr<at::cuda::CUDAGraph> graph,
                     std::shared_ptr<void> owner = nullptr) {
    if (graph == nullptr) return absl::InvalidArgumentError("there is no graph");
    return adopt(key, *graph, std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(graph, owner));
  }
  // The same, where `owner` keeps the graph object.
  absl::Status adopt(const Key& key, at::cuda::CUDAGraph& graph, std::shared_ptr<void> owner) try {
    torch_detail::Record record;
    record.draws = torch_detail::Generators::of(graph);
    Adoption adoption;
    adoption.owner = std::move(owner);
    const cudaGraph_t raw = graph.raw_cuda_graph();
    state_->keep(key, std::move(record));
    absl::Status status = cache_.adopt(key, raw, std::move(adoption));
    if (!status.ok()) state_->drop(key);
    return status;
  } catch (const c10::Error& why) {
    return absl::FailedPreconditionError(why.what_without_backtrace());
  }

  // For generators besides the device's default one, before the first capture that draws from them.
  void register_generator(const at::Generator& generator) { state_->register_generator(generator); }

  // Everything else. Runs by it are on the stream that they name, and are not checked to be on one stream. With
  // PyTorch 2.12 or newer, an `fn` that such a run calls cannot draw random numbers under capture.
  Cache& cache() { return cache_; }
  const Cache& cache() const { return cache_; }

 private:
  static int device_of(Options& options) {
    if (options.device == Options::kCurrentDevice) options.device = c10::cuda::current_device();
    return options.device;
  }

  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(cache_.options().device); }

  template <class Run>
  absl::StatusOr<Outcome> on_current_stream(const Run& run) {
    const c10::cuda::CUDAGuard guard(device());
    const cudaStream_t stream = current_stream();
    if (absl::Status status = state_->check(stream); !status.ok()) return status;
    return run(stream);
  }

  cudaStream_t current_stream() const { return c10::cuda::getCurrentCUDAStream(device()).stream(); }

  // `fn` on the stream of a run. Its place in the program is that of `fn`.
  template <class Fn>
  class OnStream {
   public:
    OnStream(torch_detail::State& state, Fn& fn) : state_(state), fn_(fn) {}
    decltype(auto) operator()(cudaStream_t stream) {
      const c10::cuda::CUDAStreamGuard guard(state_.stream_of(stream));
      state_.enter_capture(stream);
      return fn_();
    }
    const Fn& graphcache_callee() const { return fn_; }

   private:
    torch_detail::State& state_;
    Fn& fn_;
  };
  template <class Fn>
  OnStream<Fn> on_stream(Fn& fn) {
    return {*state_, fn};
  }
  static Options with_hooks(Options options, const std::shared_ptr<torch_detail::State>& state) {
    Hooks& hooks = options.hooks;
    hooks.before_capture = [state, then = std::move(hooks.before_capture)](const Key& key, cudaStream_t stream) {
      absl::Status status = state->begin_capture(stream);
      if (!status.ok() || !then) return status;
      absl::Cleanup failed = [&] { state->end_capture(key, /*has_graph=*/false); };
      status = then(key, stream);
      if (status.ok()) std::move(failed).Cancel();
      return status;
    };
    hooks.after_capture = [state, then = std::move(hooks.after_capture)](const Key& key, cudaGraph_t graph) {
      state->end_capture(key, graph != nullptr);
      if (then) then(key, graph);
    };
    hooks.before_launch = [state, then = std::move(hooks.before_launch)](const Key& key, cudaStream_t stream) {
      if (then) {
        if (absl::Status status = then(key, stream); !status.ok()) return status;
      }
      return state->before_launch(key, stream);
    };
    hooks.on_forget = [state, then = std::move(hooks.on_forget)](const Key& key) {
      state->forget(key);
      if (then) then(key);
    };
    return options;
  }

  const std::shared_ptr<torch_detail::State> state_;
  Cache cache_;  // destroyed first, because its graphs use the pools
};

}  // namespace graphcache
