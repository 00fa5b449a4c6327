// The state of hostrt, and enter(), by which every runtime function reaches it.
//
// Every runtime function is one call of enter(), which takes the lock, counts the call, applies an armed failure, runs
// the function's body and latches its error in the calling thread's slot. So bodies never lock, count or latch, and
// never call each other's runtime functions. They share the functions of the other headers here.
//
// enter() records the return address of the runtime function. So it is always inlined, and so is every function between
// the two.

#ifndef GRAPHCACHE_LIB_HOSTRT_STATE_H_
#define GRAPHCACHE_LIB_HOSTRT_STATE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "conditional_nodes.h"
#include "device_nodes.h"
#include "diagnose.h"
#include "functions.h"
#include "handle_table.h"
#include "memory.h"
#include "memory_nodes.h"
#include "misuse.h"
#include "objects.h"
#include "place.h"
#include "presence.h"
#include "user_objects.h"

namespace graphcache::hostrt {

// An error armed by fail_call(). An empty `function` means any.
struct Failure {
  std::optional<Function> function;
  int calls_to_pass = 0;
  cudaError_t error = cudaErrorUnknown;
  int times = 1;  // -1 means for ever
};

// What cudaFuncSetAttribute sets of a kernel on a device.
struct KernelAttributes {
  int max_shared_bytes = 48 * 1024;             // kDefaultSharedBytes
  int carveout = cudaSharedmemCarveoutDefault;  // without effect
  int large_clusters = 0;                       // whether clusters of more than 8 blocks are allowed; without effect
};

// Per-thread values. Constant-initialised and trivially destructible, so that an access costs one load.
struct Thread {
  std::uint64_t id = 0;     // 0 until the first call
  std::uint64_t epoch = 0;  // epoch of the last reset() that these values have seen
  int device = 0;
  std::uint64_t context = 0;  // id of the current context if cuCtxCreate made it; 0 for the device's primary context
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  bool in_work = false;          // inside a kernel or a host function
  bool in_call = false;          // inside a runtime function or work that it runs
  Stream* own_stream = nullptr;  // cudaStreamPerThread on `own_stream_device`
  int own_stream_device = -1;
  Presence* presence = nullptr;
  // The program's code, if another function of hostrt makes the runtime call.
  const void* caller = nullptr;
};

struct State {
  std::mutex mutex;  // guards everything below, and the builtin variables of kernels

  Endings endings;
  HandleTable<Stream, HandleKind::kStream> streams{endings};
  HandleTable<Event, HandleKind::kEvent> events{endings};
  HandleTable<Graph, HandleKind::kGraph> graphs{endings};
  HandleTable<Node, HandleKind::kNode> nodes{endings};
  HandleTable<Executable, HandleKind::kExecutable> executables{endings};
  HandleTable<UserObject, HandleKind::kUserObject> user_objects{endings};
  std::map<std::uint64_t, std::unique_ptr<Capture>> captures;                       // keyed by id; few at a time
  std::vector<std::unique_ptr<Stream>> legacy_streams;                              // indexed by device
  std::map<std::pair<std::uint64_t, int>, std::unique_ptr<Stream>> thread_streams;  // keyed by thread and device
  Memory device_memory;
  Memory host_memory;
  Memory registered_memory;  // The program's own, from cudaHostRegister.
  Quarantine quarantine;
  GraphMemory graph_memory;
  std::map<cudaGraphConditionalHandle, std::weak_ptr<Condition>> conditions;
  cudaGraphConditionalHandle last_condition = 0;
  std::set<CUlibrary> libraries;
  std::uintptr_t last_library = 0;
  std::map<std::pair<const Kernel*, int>, KernelAttributes> kernel_attributes;  // keyed by kernel and device

  std::set<std::pair<int, int>> peers;  // a device, and one whose memory it may use
  int device_count = 1;
  bool has_device(int device) const { return device >= 0 && device < device_count; }
  int driver_version = CUDART_VERSION;
  bool execute = true;
  std::uint64_t epoch = 1;
  std::atomic<std::uint64_t> last_thread_id{0};
  std::uint64_t last_capture_id = 0;
  unsigned long long last_stream_id = 0;

  std::vector<std::unique_ptr<Stream>> retired_streams;  // streams destroyed with work in flight
  std::vector<PendingUpload> uploads;                    // uploads that the host has not waited for
  std::size_t held_streams = 0;
  bool deferred = false;
  std::uint64_t lot = 0;          // state of the random generator that chooses what runs next
  std::vector<Stream*> runnable;  // scratch space for schedule.cc
  std::uint64_t last_mark = 0;
  std::unordered_set<std::uint64_t> marks_ahead;  // marks in queues that have not been passed

  cudaError_t lost = cudaSuccess;   // error of the work that failed; nothing runs after it (facts 32)
  bool is_lost_by_failure = false;  // by fail_call()

  std::array<std::uint64_t, kFunctionCount> calls = {};
  std::uint64_t kernels_run = 0;
  std::vector<Failure> failures;
  std::uint64_t failures_injected = 0;
  std::uint64_t strays = 0;
  std::string last_stray;
  std::uint64_t last_call = 0;
  std::uint64_t last_context_id = 0;
  std::map<int, std::uint64_t> context_ids;  // of primary contexts, keyed by device
  std::map<std::uint64_t, int> contexts;     // devices of the contexts that cuCtxCreate made, keyed by id
  std::map<int, std::uint64_t> ended_after;  // per device without a context: context_uses() when its context ended
  Place launched;                            // place of the launch whose nodes are running
  const Program* running = nullptr;          // program of that launch
  std::uint64_t misuses = 0;
  std::string last_misuse;
  std::vector<std::string> misuse_log;  // the first few messages
  bool abort_on_misuse = false;
};

// Never destroyed: destructors of static objects may still call the runtime and must get an error.
State& state();

Thread& this_thread();

// For functions that are not runtime calls. Work runs on a thread that already has the lock.
class Locked {
 public:
  Locked() {
    if (!this_thread().in_work) lock_ = std::unique_lock<std::mutex>(state().mutex);
  }
  State* operator->() const { return &state(); }
  State& operator*() const { return state(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

// If another function of hostrt calls a runtime function, reports name the program's call instead.
class CallerScope {
 public:
  explicit CallerScope(const void* caller) { this_thread().caller = caller; }
  ~CallerScope() { this_thread().caller = nullptr; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
};

// The result of every call once the runtime is unusable: in a forked child, which must not even wait for the lock, and
// after unload().
inline std::atomic<cudaError_t> runtime_gone{cudaSuccess};

// Some functions need no context and still work in a forked child.
constexpr bool answers_in_child(Function function) {
  return function == Function::kGetLastError || function == Function::kPeekAtLastError ||
         function == Function::kGetDeviceCount || function == Function::kGetDriverEntryPoint;
}

// Gives a thread its number at its first call. Needs no lock.
void introduce(State& state, Thread& thread);

// Resets a thread's values if they are older than the last reset(). Locked.
void refresh(State& state, Thread& thread);

// Frees every object and allocation. Locked.
void destroy_everything(State& state);

// Whether a call needs the context, so that it fails for ever once the context is lost. Calls on templates and queries
// that the runtime answers without a context still work.
bool needs_context(Function function);

// Destroys what belongs to one device's context: streams, events, executables and memory, but not graphs, which belong
// to the host. All work of the device must have ended. Locked.
void end_device(State& state, int device);

// The id of a device's context. It changes at each reset, and is 0 until some call has created the context. Locked.
std::uint64_t context_id(State& state, int device);

// The error of an armed fail_call() for this call of `function`, if any; counts it. Locked.
std::optional<cudaError_t> injected_failure(State& state, Function function);

// One call of a runtime function, as its body sees it.
struct Call {
  State& state;
  Thread& thread;
  Function function;

  // Reports a misuse and returns `error`.
  cudaError_t misuse(cudaError_t error, const std::string& what, std::initializer_list<Involved> involved = {}) const;
};

// Look up objects by handle. A null result means an invalid handle; a misuse is counted if the handle is stale or
// foreign, but not if it is null. The caller chooses the error to return.
Event* find_event(const Call& call, cudaEvent_t handle);
Graph* find_graph(const Call& call, cudaGraph_t handle);
Node* find_node(const Call& call, cudaGraphNode_t handle);
Executable* find_executable(const Call& call, cudaGraphExec_t handle);
UserObject* find_user_object(const Call& call, cudaUserObject_t handle);

// As above. 0, cudaStreamLegacy and cudaStreamPerThread give the implicit streams of the current device and thread.
Stream* find_stream(const Call& call, cudaStream_t handle);

// The same outside of a runtime call. The caller counts the misuse.
Stream* find_stream(State& state, Thread& thread, cudaStream_t handle);

// For a runtime call from a kernel or host function, whose thread already holds the lock.
cudaError_t refuse_inside_work(State& state, Thread& thread, Function function, const void* address);

// The last-error slot keeps every error except cudaErrorNotReady, which cudaStreamQuery and cudaEventQuery return as a
// result (fact 31).
inline cudaError_t latch(Thread& thread, cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) thread.last_error = error;
  return error;
}

// Sets a flag during its lifetime.
class Inside {
 public:
  explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
  ~Inside() { flag_ = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool& flag_;
};

// If a failure is armed, or the context is lost, `injected(call, error)` runs instead of the body and returns the
// call's result.
template <typename Body, typename Injected>
[[gnu::always_inline]] inline cudaError_t enter(const Entry& entry, Body&& body, Injected&& injected) noexcept {
  Thread& thread = this_thread();
  if (const cudaError_t gone = runtime_gone.load(std::memory_order_relaxed); gone != cudaSuccess) {
    if (gone == cudaErrorCudartUnloading) return gone;
    if (!answers_in_child(entry.function)) return latch(thread, gone);
  }
  State& world = state();
  const void* address = __builtin_return_address(0);
  if (thread.caller != nullptr) address = std::exchange(thread.caller, nullptr);  // not for calls from within this one
  if (thread.in_work) return refuse_inside_work(world, thread, entry.function, address);
  if (thread.id == 0) introduce(world, thread);
  Teller teller;  // destroyed when the lock has been released
  std::unique_lock<std::mutex> lock(world.mutex, std::defer_lock);
  const PresenceScope presence(thread.presence, entry, address);  // until just before the lock is released
  lock.lock();
  if (thread.epoch != world.epoch) refresh(world, thread);
  ++world.calls[static_cast<std::size_t>(entry.function)];
  world.endings.here = {name_of(entry.function), ++world.last_call, thread.id, address};
  const Call call{world, thread, entry.function};
  const Inside inside(thread.in_call);
  try {
    if (!world.failures.empty()) {
      if (const std::optional<cudaError_t> error = injected_failure(world, entry.function)) {
        return latch(thread, injected(call, *error));
      }
    }
    if (world.lost != cudaSuccess && needs_context(entry.function)) return latch(thread, injected(call, world.lost));
    const bool is_watched = entry.objects[0] != nullptr && presences().used.load(std::memory_order_relaxed) > 1;
    const std::vector<const void*> written = is_watched ? written_graphs(world, entry) : std::vector<const void*>();
    const cudaError_t error = body(call);
    if (is_watched) report_overlaps(world, thread, entry, written);
    if (diagnose::watches_any()) {
      teller.is_needed = true;
      note_result(world, entry.function, error, address);
    }
    return latch(thread, world.lost != cudaSuccess && needs_context(entry.function) ? world.lost : error);
  } catch (const std::bad_alloc&) {
    return latch(thread, cudaErrorMemoryAllocation);
  } catch (...) {
    return latch(thread, cudaErrorUnknown);
  }
}

template <typename Body>
[[gnu::always_inline]] inline cudaError_t enter(const Entry& entry, Body&& body) noexcept {
  return enter(entry, std::forward<Body>(body), [](const Call&, cudaError_t error) { return error; });
}

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_STATE_H_
