// The world of hostrt and the way into it.
//
// Every runtime function is one call of enter(): it takes the lock, counts the call, lets an armed failure strike, runs
// the function's body and latches its error in the calling thread's slot. Bodies therefore never lock, count or latch,
// and never call runtime functions of each other; what they share are the functions of the other headers here.
//
// enter() notes where it was called from: the return address of the runtime function. So it is always inlined, and so
// must be whatever a runtime function calls it through.

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

// An error armed by fail_call(). `function` empty: any.
struct Failure {
  std::optional<Function> function;
  int calls_to_pass = 0;
  cudaError_t error = cudaErrorUnknown;
  int times = 1;  // -1: for ever
};

// What belongs to one thread. Constant-initialised and trivially destructible, so that reaching it costs one load.
struct Thread {
  std::uint64_t id = 0;     // 0: not yet seen
  std::uint64_t epoch = 0;  // of the reset() that these values are from
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  bool in_work = false;          // inside a kernel or a host function
  bool in_call = false;          // inside a runtime function, or what it runs
  Stream* own_stream = nullptr;  // cudaStreamPerThread on `own_stream_device`
  int own_stream_device = -1;
  Presence* presence = nullptr;
  const void* caller = nullptr;  // the program's code, where a runtime function is called by another function of hostrt
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
  std::map<std::uint64_t, std::unique_ptr<Capture>> captures;                       // by id; few at a time
  std::vector<std::unique_ptr<Stream>> legacy_streams;                              // by device
  std::map<std::pair<std::uint64_t, int>, std::unique_ptr<Stream>> thread_streams;  // by thread and device
  Memory device_memory;
  Memory host_memory;
  Quarantine quarantine;
  GraphMemory graph_memory;
  std::map<cudaGraphConditionalHandle, std::weak_ptr<Condition>> conditions;
  cudaGraphConditionalHandle last_condition = 0;
  std::set<CUlibrary> libraries;
  std::uintptr_t last_library = 0;

  int device_count = 1;
  int driver_version = CUDART_VERSION;
  bool execute = true;
  std::uint64_t epoch = 1;
  std::atomic<std::uint64_t> last_thread_id{0};
  std::uint64_t last_capture_id = 0;
  unsigned long long last_stream_id = 0;

  std::vector<std::unique_ptr<Stream>> retired_streams;  // destroyed with work in flight
  std::vector<PendingUpload> uploads;                    // that the host has not waited for
  std::size_t held_streams = 0;
  bool deferred = false;
  std::uint64_t lot = 0;          // of the generator that draws what runs next
  std::vector<Stream*> runnable;  // for schedule.cc
  std::uint64_t last_mark = 0;
  std::unordered_set<std::uint64_t> marks_ahead;  // in queues, not yet passed

  cudaError_t lost = cudaSuccess;  // the error of the work that ended everything (facts 32)

  std::array<std::uint64_t, kFunctionCount> calls = {};
  std::uint64_t kernels_run = 0;
  std::vector<Failure> failures;
  std::uint64_t failures_injected = 0;
  std::uint64_t strays = 0;
  std::string last_stray;
  std::uint64_t last_call = 0;
  std::uint64_t last_context_id = 0;
  std::map<int, std::uint64_t> context_ids;  // by device
  std::map<int, std::uint64_t> ended_after;  // by device without a context: calls that use one, when that ended
  Place launched;                            // of the graph whose nodes run
  const Program* running = nullptr;          // that graph
  std::uint64_t misuses = 0;
  std::string last_misuse;
  std::vector<std::string> misuse_log;  // the first ones
  bool abort_on_misuse = false;
};

// Never destroyed: destructors of static objects may still call the runtime, and be refused.
State& state();

Thread& this_thread();

// For functions that are no runtime calls. Inside work the thread has the lock.
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

// Where a runtime function is called by another function of hostrt, the place of the call is that of the program's.
class CallerScope {
 public:
  explicit CallerScope(const void* caller) { this_thread().caller = caller; }
  ~CallerScope() { this_thread().caller = nullptr; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
};

// What every call returns once the runtime is gone: in a forked child, which must not even wait for the lock, and after
// unload().
inline std::atomic<cudaError_t> runtime_gone{cudaSuccess};

// Some functions need no context, and go on in a forked child (tried).
constexpr bool answers_in_child(Function function) {
  return function == Function::kGetLastError || function == Function::kPeekAtLastError ||
         function == Function::kGetDeviceCount || function == Function::kGetDriverEntryPoint;
}

// Gives a thread its number, at its first call. Needs no lock.
void introduce(State& state, Thread& thread);

// Brings a thread's values to those of a fresh process when they are from before the last reset(). Locked.
void refresh(State& state, Thread& thread);

// Frees every object and allocation. Locked.
void destroy_everything(State& state);

// Whether a call needs the context, so that it fails for ever once that is lost. The others, those on templates and
// the questions that the runtime answers by itself, go on (tried).
bool needs_context(Function function);

// Ends what belongs to the context of one device: streams, events, executables and memory, but no graphs, which belong
// to the host (tried). Work of the device must have ended. Locked.
void end_device(State& state, int device);

// The number of a device's context: another one after each reset, and 0 until some call has made that one. Locked.
std::uint64_t context_id(State& state, int device);

// Counts a failure that an armed fail_call() wants for this call of `function`. Locked.
std::optional<cudaError_t> injected_failure(State& state, Function function);

// One call of a runtime function, as its body sees it.
struct Call {
  State& state;
  Thread& thread;
  Function function;

  // Reports a misuse and returns `error`.
  cudaError_t misuse(cudaError_t error, const std::string& what, std::initializer_list<Involved> involved = {}) const;
};

// Objects by handle. A null result means that the call has counted a misuse where the handle is stale or foreign (a
// null handle is an ordinary invalid argument); the caller returns the error of its own choice.
Event* find_event(const Call& call, cudaEvent_t handle);
Graph* find_graph(const Call& call, cudaGraph_t handle);
Node* find_node(const Call& call, cudaGraphNode_t handle);
Executable* find_executable(const Call& call, cudaGraphExec_t handle);
UserObject* find_user_object(const Call& call, cudaUserObject_t handle);

// As above; 0, cudaStreamLegacy and cudaStreamPerThread give the current device's and thread's implicit streams.
Stream* find_stream(const Call& call, cudaStream_t handle);

// The same without a call. The caller counts the misuse.
Stream* find_stream(State& state, Thread& thread, cudaStream_t handle);

// A runtime call from a kernel or host function, on the thread that already holds the lock.
cudaError_t refuse_inside_work(State& state, Thread& thread, Function function, const void* address);

// The last-error slot keeps every error except cudaErrorNotReady, which is an answer and not an error: cudaStreamQuery
// and cudaEventQuery do not leave it there (fact 31).
inline cudaError_t latch(Thread& thread, cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) thread.last_error = error;
  return error;
}

// Sets a flag while it lives.
class Inside {
 public:
  explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
  ~Inside() { flag_ = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool& flag_;
};

// `injected(call, error)` stands in for the body when a failure strikes; it returns what the call returns.
template <typename Body, typename Injected>
[[gnu::always_inline]] inline cudaError_t enter(const Entry& entry, Body&& body, Injected&& injected) noexcept {
  Thread& thread = this_thread();
  if (const cudaError_t gone = runtime_gone.load(std::memory_order_relaxed); gone != cudaSuccess) {
    if (gone == cudaErrorCudartUnloading) return gone;
    if (!answers_in_child(entry.function)) return latch(thread, gone);
  }
  State& world = state();
  const void* const address = thread.caller != nullptr ? thread.caller : __builtin_return_address(0);
  if (thread.in_work) return refuse_inside_work(world, thread, entry.function, address);
  if (thread.id == 0) introduce(world, thread);
  std::unique_lock<std::mutex> lock(world.mutex, std::defer_lock);
  const PresenceScope presence(thread.presence, entry, address);  // until just before the lock is given back
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
    if (world.lost != cudaSuccess && needs_context(entry.function)) return latch(thread, world.lost);
    const bool is_watched = entry.objects[0] != nullptr && presences().used.load(std::memory_order_relaxed) > 1;
    const std::vector<const void*> written = is_watched ? written_graphs(world, entry) : std::vector<const void*>();
    const cudaError_t error = body(call);
    if (is_watched) report_overlaps(world, thread, entry, written);
    if (diagnose::watches_any()) note_result(world, entry.function, error, address);
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
