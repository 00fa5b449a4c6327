// Captures of a cache, as PyTorch's allocator and generators see them. For graphcache_torch.h, not for users.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/record_function.h>
#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <graphcache/graphcache.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graphcache_torch_memory.h"
#include "graphcache_torch_versions.h"

namespace graphcache {
namespace torch_detail {

// What the launches of a graph need.
struct Record {
  std::uint64_t graph = 0;            // its number (CacheEvent::graph); 0 if PyTorch has captured it
  std::shared_ptr<Pool> pool;         // pool of its captured memory; null if PyTorch has captured it
  std::shared_ptr<Pool> torchs_pool;  // pool of PyTorch's graph, if there is one
  Workspaces workspaces;              // in `pool`, if that is of this key alone
  std::vector<Draws> draws;           // what its graph draws from generators
};

// What PyTorch says of an error, without its backtrace.
inline const char* text_of(const std::exception& why) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&why);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : why.what();
}

inline std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}
class State;

// Owns the record of one graph, which keeps it (Recorder::keep, Graph::owner). The state finds it by its key.
class RecordOwner {
 public:
  RecordOwner(std::shared_ptr<State> state, const Key& key, std::shared_ptr<void> also = nullptr)
      : state_(std::move(state)), key_(key), also_(std::move(also)) {}
  ~RecordOwner();
  RecordOwner(const RecordOwner&) = delete;
  RecordOwner& operator=(const RecordOwner&) = delete;

 private:
  friend class State;

  const std::shared_ptr<State> state_;
  const Key key_;
  const std::shared_ptr<void> also_;  // what the graph needs besides
  Record record_;
};

// The cache whose capture this thread has under way: the thread holds capture_mutex().
inline thread_local const State* capturing = nullptr;
// The cache whose captured call of `fn` is the innermost call of an `fn` in this thread. Null in direct calls, and in
// runs inside the captured call.
inline thread_local const State* captured_call = nullptr;
// The number of captures that the innermost run of this thread has begun, or negative outside of one.
inline thread_local int captures_of_run = -1;
class RunScope {
 public:
  RunScope() : outer_(std::exchange(captures_of_run, 0)) {}
  ~RunScope() { captures_of_run = outer_; }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  const int outer_;
};
// What the innermost run of this thread does before it launches, or null.
inline thread_local const std::function<void()>* before_launch = nullptr;
// Does that.
inline absl::Status prepare_launch() try {
  if (before_launch != nullptr) (*before_launch)();
  return absl::OkStatus();
} catch (const std::exception& why) {
  return absl::InternalError(absl::StrCat("PyTorch cannot copy the arguments for the graph: ", text_of(why)));
}
// Set while this thread tries out which pool PyTorch's allocator takes: a capture sets it if it is asked for memory.
inline thread_local bool* was_asked = nullptr;
// The recorder of the innermost call of an `fn` in this thread.
inline thread_local Recorder* recorder = nullptr;

inline unsigned long long id_of_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr);
#endif
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
}

inline bool is_inside_capture(c10::DeviceIndex device) {
  return capturing != nullptr || id_of_capture(c10::cuda::getCurrentCUDAStream(device).stream()) != 0;
}

// Number of forks between the program's first process and this one.
inline unsigned forks() {
  static std::atomic<unsigned> count{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return count.load(std::memory_order_relaxed);
}

// Releases the record's memory once this thread's capture is over.
inline void release_later(Record record);

// While it exists, this thread's operators leave autocast's table of casts alone, which is one for all threads: weights
// that are cast in a capture are in its memory, and weights cast elsewhere are not computed in it. Regions in `fn` may
// switch the table on, so each operator switches it off for itself, also in the threads of a backward().
class WithoutCasts {
 public:
  WithoutCasts() {
    const auto each = at::RecordFunctionCallback(&switch_off).scopes({at::RecordScope::FUNCTION});
    handle_ = at::addThreadLocalCallback(each);
  }
  ~WithoutCasts() { at::removeCallback(handle_); }
  WithoutCasts(const WithoutCasts&) = delete;
  WithoutCasts& operator=(const WithoutCasts&) = delete;

 private:
  struct SwitchedOff : at::ObserverContext {
    ~SwitchedOff() override { at::autocast::set_autocast_cache_enabled(true); }
  };
  static std::unique_ptr<at::ObserverContext> switch_off(const at::RecordFunction&) {
    if (!at::autocast::is_autocast_cache_enabled()) return nullptr;
    at::autocast::set_autocast_cache_enabled(false);
    return std::make_unique<SwitchedOff>();
  }

  const at::RecordFunctionGuard with_callbacks_;  // also where the program has none
  at::CallbackHandle handle_;
};

// The state of one cache.
class State : public std::enable_shared_from_this<State> {
 public:
  State(int device, bool one_pool) : device_(static_cast<c10::DeviceIndex>(device)), forks_(forks()) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // the cache may be what uses CUDA first
    TORCH_CHECK(c10::cuda::CUDACachingAllocator::name() != "cudaMallocAsync",
                "graphcache: captures need memory pools, which PyTorch's allocator cudaMallocAsync does not have: set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:native");
    check_outside_of_captures();  // before pools are made, which cannot be freed in one
    if (one_pool) {
      pool_ = make_pool();
      results_ = make_pool();
    }
    register_generator(at::cuda::detail::getDefaultCUDAGenerator(device_));
  }

  void register_generator(const at::Generator& generator) {
    check_outside_of_captures();
    const bool is_ours = generator.defined() && generator.device().is_cuda() &&
                         (!generator.device().has_index() || generator.device().index() == device_);
    TORCH_CHECK(is_ours, "graphcache: the generator is not one of the cache's device");
    const std::lock_guard lock(capture_mutex());
    const c10::cuda::CUDAGuard guard(device_);
    generators_.add(generator);
  }

  bool is_of_this_process() const { return forks_ == forks(); }
  static absl::Status of_another_process() {
    return absl::FailedPreconditionError(
        "the cache was made before this process was forked, and CUDA's objects are of one process: make a cache here");
  }

  c10::cuda::CUDAStream stream_of(cudaStream_t stream) const {
    if (stream == nullptr || stream == cudaStreamLegacy) return c10::cuda::getDefaultCUDAStream(device_);
    return c10::cuda::getStreamFromExternal(stream, device_);
  }

  absl::Status begin_capture(const Key& key, cudaStream_t stream) try {
    capture_mutex().lock();
    capturing = this;
    pending_.key = key;
    pending_.without_casts = std::make_unique<WithoutCasts>();
    pending_.stream = stream;
    pending_.shares_memory = shares_memory(key);
    // A second recording of one run shows which arguments are addresses of temporaries: it has them elsewhere.
    const bool is_again = captures_of_run > 0;
    if (captures_of_run >= 0) ++captures_of_run;
    pending_.record.pool = pending_.shares_memory && !is_again ? pool_ : make_pool();
    if (pending_.record.pool == pool_) pending_.before = PoolMemory(*pool_).in_use();
    workspaces_of(pending_.record).swap_in();
    pending_.has_workspaces = true;
    generators_.begin_capture();
    allocate_from(pending_.record.pool);
    pending_.is_elsewhere = allocates_elsewhere();
    begin_allocator_capture(device_);
    pending_.is_marked = true;
    return absl::OkStatus();
  } catch (const std::exception& why) {
    release(finish());
    return absl::InternalError(absl::StrCat("PyTorch cannot prepare the capture: ", text_of(why)));
  }

  // What the graph of this thread's capture must keep.
  std::shared_ptr<RecordOwner> owner_of_capture() {
    auto owner = std::make_shared<RecordOwner>(shared_from_this(), pending_.key);
    pending_.owner = owner;
    return owner;
  }
  // The same for a graph that PyTorch has captured, which `graph` keeps.
  std::shared_ptr<RecordOwner> owner_of(const Key& key, at::cuda::CUDAGraph& of, std::shared_ptr<void> graph) {
    auto owner = std::make_shared<RecordOwner>(shared_from_this(), key, std::move(graph));
    Record record;
    record.draws = Generators::of(of);
    record.torchs_pool = keep_pool(of.pool());
    keep(*owner, std::move(record));
    return owner;
  }

  // Whether this thread captures on the stream, for this cache.
  bool captures_on(cudaStream_t stream) const { return capturing == this && pending_.stream == stream; }

  // PyTorch's stream for a call of `fn` on a stream that captures_on(). It becomes part of the capture. Throws if `fn`
  // would allocate what PyTorch gives to others later.
  c10::cuda::CUDAStream enter_capture(cudaStream_t stream) {
    if (pending_.is_elsewhere) {
      throw std::runtime_error(
          "the run is inside torch.cuda.use_mem_pool, whose pool would give the memory of a graph to other tensors");
    }
    if constexpr (Generators::kEntersCaptures) generators_.enter_capture(id_of_capture(stream));
    const c10::cuda::CUDAStream inner = stream_of(stream_.get());
    follow(inner, stream_of(stream));
    return inner;
  }
  // To be called behind `fn`, whatever it has done.
  void leave_capture(cudaStream_t stream) noexcept {
    try {
      follow(stream_of(stream), stream_of(stream_.get()));
    } catch (const std::exception&) {
      static_cast<void>(cudaGetLastError());  // the capture is broken, and the cache will say so
    }
  }
  // To be called once `fn` has returned. Throws if it has left tensors in memory that other keys use for temporaries,
  // and sets `must_capture_again` then.
  void check_what_is_left(bool* must_capture_again) {
    if (pending_.record.pool != pool_) return;
    const PoolMemory memory(*pool_);
    std::size_t bytes = 0;
    for (const auto& [address, size] : memory.in_use()) {
      if (pending_.before.count(address) == 0 && !Workspaces::has(address)) bytes += size;
    }
    if (bytes == 0) return;
    {
      const std::lock_guard lock(mutex_);
      constexpr std::size_t kMost = 10000;  // keys that never come back must not pile up
      if (apart_.size() >= kMost) apart_.clear();
      apart_.insert(pending_.key);
    }
    *must_capture_again = true;
    throw std::runtime_error(absl::StrCat(
        "fn leaves tensors of ", bytes,
        " bytes that runs of other keys would overwrite, so the key is captured again, with memory of its own"));
  }

  // Whether the captured call of `fn` has allocated the tensor.
  bool is_of_capture(const at::Tensor& tensor) {
    if (captured_call != this || !tensor.has_storage()) return false;
    if (!pending_.memory) pending_.memory.emplace(*pending_.record.pool);
    return pending_.memory->contains(tensor.storage().data());
  }

  // Memory that this thread's capture allocates from now on is not reused by other keys. Returns false if that is the
  // case anyway.
  bool begin_results() {
    if (captured_call != this || !pending_.shares_memory) return false;
    if (pending_.record.pool == pool_ && pending_.allocating != results_) {
      stop_allocating();
      allocate_from(results_);
    }
    return true;
  }

  bool has_one_pool() const { return pool_ != nullptr; }
  bool leaves_tensors(const Key& key) { return pool_ != nullptr && !shares_memory(key); }

  // `graph` is its number, or 0 if there is none.
  void end_capture(std::uint64_t graph) {
    const std::shared_ptr<RecordOwner> owner = pending_.owner.lock();
    Record record = finish();
    record.graph = graph;
    if (graph != 0 && owner != nullptr) {
      keep(*owner, std::move(record));
    } else {
      release(std::move(record));
    }
  }

  // The owner's graph is gone, and its launches are over.
  void forget(RecordOwner& owner) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = owners_.find(owner.key_);
      if (found == owners_.end()) return;
      std::vector<RecordOwner*>& of_key = found->second;
      of_key.erase(std::remove(of_key.begin(), of_key.end(), &owner), of_key.end());
      if (of_key.empty()) owners_.erase(found);
    }
    release(std::move(owner.record_));
  }

  // Keeps the memory of a graph that PyTorch has captured, although that is reset.
  std::shared_ptr<Pool> keep_pool(PoolId pool) {
    check_outside_of_captures();
    const std::lock_guard lock(capture_mutex());
    return std::make_shared<Pool>(device_, pool);
  }

  // Sets the generators' values for this launch to what a direct call of `fn` would see.
  absl::Status before_launch(const Key& key, std::uint64_t graph, cudaStream_t stream) try {
    if (!draws_.load(std::memory_order_relaxed)) return absl::OkStatus();
    std::vector<Drawn> drawn;
    {
      const std::lock_guard lock(mutex_);
      const auto found = owners_.find(key);
      if (found == owners_.end()) return absl::OkStatus();
      const auto is_it = [&](const RecordOwner* owner) {
        return owner->record_.graph == graph || owner->record_.graph == 0;
      };
      const auto owner = std::find_if(found->second.rbegin(), found->second.rend(), is_it);
      if (owner == found->second.rend()) return absl::OkStatus();
      for (const Draws& draws : (*owner)->record_.draws) drawn.push_back(draws.advance());
    }
    if (drawn.empty()) return absl::OkStatus();
    const c10::cuda::CUDAStreamGuard guard(stream_of(stream));
    for (const Drawn& one : drawn) one.fill();  // without the lock, for which holders of Python's lock wait
    return absl::OkStatus();
  } catch (const std::exception& why) {
    return absl::InternalError(absl::StrCat("PyTorch cannot set a generator: ", text_of(why)));
  }

  // Whether a run may use the stream: any stream, or that of the first run if keys share memory. Runs inside a capture
  // become part of it.
  absl::Status check(cudaStream_t stream) {
    if (pool_ == nullptr) return absl::OkStatus();
    cudaStream_t first = only_stream_.load(std::memory_order_relaxed);
    if (first == stream || id_of_capture(stream) != 0) return absl::OkStatus();
    if (first == kNoStream && only_stream_.compare_exchange_strong(first, stream)) return absl::OkStatus();
    if (first == stream) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the keys of this cache share memory for temporaries, so all of its runs are on one stream, and this run is on "
        "another one: take a cache for each stream, or Pools::kOnePerKey");
  }

 private:
  static inline const cudaStream_t kNoStream = reinterpret_cast<cudaStream_t>(~std::uintptr_t{0});

  void keep(RecordOwner& owner, Record record) {
    const std::lock_guard lock(mutex_);
    if (!record.draws.empty()) draws_.store(true, std::memory_order_relaxed);
    owner.record_ = std::move(record);
    owners_[owner.key_].push_back(&owner);
  }
  void release(Record record) {
    if (record.pool == pool_ && record.torchs_pool == nullptr) return;
    if (is_inside_capture(device_)) {
      release_later(std::move(record));
      return;
    }
    const std::lock_guard lock(capture_mutex());  // the allocator frees no pool during a capture
    record = {};
  }

  std::shared_ptr<Pool> make_pool() const { return std::make_shared<Pool>(device_); }

  void check_outside_of_captures() const {
    TORCH_CHECK(
        !is_inside_capture(device_),
        "graphcache: a capture is under way in this thread: make caches, register generators and take graphs of "
        "PyTorch before");
  }

  // Whether the key's temporaries are in the pool of all keys.
  bool shares_memory(const Key& key) {
    if (pool_ == nullptr) return false;
    const std::lock_guard lock(mutex_);
    return apart_.count(key) == 0;
  }

  Workspaces& workspaces_of(Record& record) { return record.pool == pool_ ? workspaces_ : record.workspaces; }

  // Work on `stream` from now on waits for what is on `other`.
  static void follow(const c10::cuda::CUDAStream& stream, const c10::cuda::CUDAStream& other) {
    at::cuda::CUDAEvent event;
    event.record(other);
    event.block(stream);
  }

  void allocate_from(const std::shared_ptr<Pool>& pool) {
    // Only the memory of this capture's streams, because other streams may allocate meanwhile.
    const auto is_of_capture = [stream = pending_.stream](cudaStream_t other) {
      if (was_asked != nullptr) {
        *was_asked = true;
        return false;
      }
      return other == stream || (id_of_capture(other) != 0 && id_of_capture(other) == id_of_capture(stream));
    };
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, pool->id(), is_of_capture);
    pending_.allocating = pool;
  }
  // Whether this thread allocates from another pool although the capture has named its own. Up to PyTorch 2.9, the
  // allocator takes the pool that was named first, so that of a torch.cuda.use_mem_pool around the run.
  bool allocates_elsewhere() const {
    const c10::cuda::CUDAGuard guard(device_);
    bool asked = false;
    was_asked = &asked;
    const absl::Cleanup done = [] { was_asked = nullptr; };
    c10::cuda::CUDACachingAllocator::raw_delete(c10::cuda::CUDACachingAllocator::raw_alloc(1));
    return !asked;
  }
  void stop_allocating() {
    if (pending_.allocating == nullptr) return;
    const auto pool = std::exchange(pending_.allocating, nullptr);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool->id());
    // What `begin` added; the Pool holds the pool.
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool->id());
  }

  // Ends what begin_capture has begun.
  Record finish() {
    const absl::Cleanup unlock = [this] {
      pending_ = {};
      capturing = nullptr;
      capture_mutex().unlock();
    };
    generators_.end_capture(&pending_.record.draws);
    if (std::exchange(pending_.is_marked, false)) end_allocator_capture(device_);
    if (std::exchange(pending_.has_workspaces, false)) {
      PoolMemory memory, results;
      if (!Workspaces::are_empty()) {
        memory = PoolMemory(*pending_.record.pool);
        if (results_ != nullptr) results = PoolMemory(*results_);
      }
      workspaces_of(pending_.record).swap_out([&](const void* workspace) {
        return memory.contains(workspace) || results.contains(workspace);
      });
    }
    stop_allocating();
    return std::move(pending_.record);
  }

  // The current capture. Guarded by capture_mutex().
  struct Pending {
    Key key;
    cudaStream_t stream = nullptr;
    bool shares_memory = false;                    // whether the key's temporaries are in the pool of all keys
    std::map<std::uintptr_t, std::size_t> before;  // blocks of the shared pool that were in use before
    bool has_workspaces = false;                   // whether PyTorch finds those of the capture
    std::optional<PoolMemory> memory;              // of the capture's temporaries, once it was asked for
    bool is_elsewhere = false;                     // whether the capture cannot allocate from its pool
    std::shared_ptr<Pool> allocating;              // pool that the capture allocates from now
    bool is_marked = false;                        // whether the allocator was told of the capture
    std::unique_ptr<WithoutCasts> without_casts;   // while the capture lasts
    Record record;
    std::weak_ptr<RecordOwner> owner;  // of the record, once the graph is kept
  };

  const c10::DeviceIndex device_;
  const unsigned forks_;
  const CaptureStream stream_{device_};
  std::shared_ptr<Pool> pool_;     // pool of all keys' temporaries; null if each key has its own
  std::shared_ptr<Pool> results_;  // pool of all keys' results, if they share temporaries
  Workspaces workspaces_;          // in pool_ and results_
  Generators generators_;
  Pending pending_;
  std::atomic<bool> draws_{false};  // whether any key draws random numbers
  std::atomic<cudaStream_t> only_stream_{kNoStream};
  std::mutex mutex_;
  std::unordered_map<Key, std::vector<RecordOwner*>> owners_;  // of each key's graphs, the oldest first
  std::unordered_set<Key> apart_;                              // keys whose temporaries are in a pool of their own
};

inline RecordOwner::~RecordOwner() { state_->forget(*this); }

// What is left of a cache, or of one key.
struct Parts {
  std::shared_ptr<State> state;
  std::unique_ptr<Cache> cache;
  Record record;
};

// What could not be destroyed where it was given up, because a capture was under way.
class Waiting {
 public:
  static void add(Parts parts) {
    const std::lock_guard lock(mutex());
    list().push_back(std::move(parts));
    any().store(true, std::memory_order_relaxed);
  }
  // Destroys them, unless this thread captures on the current stream.
  static void destroy(c10::DeviceIndex device) {
    if (!any().load(std::memory_order_relaxed) || is_inside_capture(device)) return;
    std::vector<Parts> gone;
    {
      const std::lock_guard lock(mutex());
      gone.swap(list());
      any().store(false, std::memory_order_relaxed);
    }
    for (Parts& parts : gone) {
      parts.cache.reset();                          // before its pools
      const std::lock_guard lock(capture_mutex());  // the allocator frees no pool during a capture
      parts = {};
    }
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::vector<Parts>& list() {
    static auto* const list = new std::vector<Parts>;  // CUDA may be gone when a process ends
    return *list;
  }
  static std::atomic<bool>& any() {
    static std::atomic<bool> any{false};
    return any;
  }
};

inline void release_later(Record record) { Waiting::add({nullptr, nullptr, std::move(record)}); }

}  // namespace torch_detail

}  // namespace graphcache
