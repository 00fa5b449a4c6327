#include "state.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "capture.h"
#include "schedule.h"

namespace graphcache::hostrt {
namespace {

thread_local constinit Thread current_thread;

// Removes a thread's implicit streams when it ends. Separate from Thread, which must stay cheap to access.
struct ThreadStreamsCleaner {
  ~ThreadStreamsCleaner() {
    if (runtime_gone == cudaErrorInitializationError) return;  // the streams belong to another process
    State& world = state();
    const std::lock_guard<std::mutex> lock(world.mutex);
    world.endings.here = {"end of the thread", 0, current_thread.id, nullptr};
    for (auto entry = world.thread_streams.begin(); entry != world.thread_streams.end();) {
      if (entry->first.first == current_thread.id) {
        leave_capture(world, *entry->second);
        finish(world, *entry->second);
        entry = world.thread_streams.erase(entry);
      } else {
        ++entry;
      }
    }
    current_thread.own_stream = nullptr;
    current_thread.own_stream_device = -1;
  }
  bool armed = false;
};

thread_local ThreadStreamsCleaner streams_cleaner;

Stream& legacy_stream(State& state, int device) {
  if (state.legacy_streams.size() <= static_cast<std::size_t>(device)) state.legacy_streams.resize(device + 1);
  std::unique_ptr<Stream>& stream = state.legacy_streams[device];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>();
    stream->handle = cudaStreamLegacy;
    stream->id = ++state.last_stream_id;
    stream->device = device;
    stream->is_legacy = true;
  }
  return *stream;
}

Stream& thread_stream(State& state, Thread& thread) {
  if (thread.own_stream_device == thread.device) return *thread.own_stream;
  std::unique_ptr<Stream>& stream = state.thread_streams[{thread.id, thread.device}];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>();
    stream->handle = cudaStreamPerThread;
    stream->id = ++state.last_stream_id;
    stream->device = thread.device;
    streams_cleaner.armed = true;  // constructs it, so that its destructor will run
  }
  thread.own_stream = stream.get();
  thread.own_stream_device = thread.device;
  return *stream;
}

template <typename Table, typename Handle>
auto* find(const Call& call, const Table& table, Handle handle, const char* what) {
  auto* object = table.find(handle);
  if (object == nullptr && handle != nullptr) {
    call.misuse(cudaSuccess, std::string(what) + (table.was_given_out(handle) ? " was destroyed" : " never existed"),
                {{"destroyed", call.state.endings.find(handle)}});
  }
  return object;
}

// The number of calls so far that create the device's context if it has none.
std::uint64_t context_uses(const State& state) {
  std::uint64_t uses = 0;
  for (std::size_t i = 0; i < kFunctionCount; ++i) {
    if (needs_context(static_cast<Function>(i))) uses += state.calls[i];
  }
  return uses;
}

// Runs in a forked child, where threads that held or wanted the lock do not exist. If the parent had not called the
// runtime, the child may use it.
void end_in_child() {
  State& inherited = state();
  new (&inherited.mutex) std::mutex;
  if (inherited.last_thread_id != 0) runtime_gone = cudaErrorInitializationError;
}

// Registered at the first call, so that objects constructed before it are destroyed after it (facts 34).
void end_at_exit() {
  cudaError_t still_there = cudaSuccess;
  runtime_gone.compare_exchange_strong(still_there, cudaErrorCudartUnloading);
}

State* make_state() {
  auto* made = new State;
  defer_as_wanted(*made);
  const char* abort_wanted = std::getenv("GRAPHCACHE_HOSTRT_ABORT");
  made->abort_on_misuse = abort_wanted != nullptr && std::strcmp(abort_wanted, "1") == 0;
  pthread_atfork(nullptr, nullptr, end_in_child);
  std::atexit(end_at_exit);
  return made;
}

// Whether the error ends the context (fact 32).
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
      return true;
    default:
      return error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure;
  }
}

}  // namespace

State& state() {
  static State& instance = *make_state();
  return instance;
}

Thread& this_thread() { return current_thread; }

void introduce(State& state, Thread& thread) {
  thread.id = ++state.last_thread_id;
  thread.presence = take_presence();
  if (thread.presence != nullptr) thread.presence->thread = thread.id;
}

void refresh(State& state, Thread& thread) {
  if (thread.id == 0) introduce(state, thread);
  Thread fresh;
  fresh.id = thread.id;
  fresh.epoch = state.epoch;
  fresh.presence = thread.presence;
  fresh.caller = thread.caller;
  thread = fresh;
}

void destroy_everything(State& state) {
  state.user_objects.clear();  // first, and without calling their destructors, which belong to a test that has ended
  state.captures.clear();
  state.executables.clear();
  state.libraries.clear();
  state.nodes.clear();
  state.graphs.clear();
  state.events.clear();
  state.streams.reuse(false);
  state.streams.clear();
  state.legacy_streams.clear();
  state.thread_streams.clear();
  state.retired_streams.clear();
  state.uploads.clear();
  state.held_streams = 0;
  state.marks_ahead.clear();
  state.lost = cudaSuccess;
  state.is_lost_by_failure = false;
  state.graph_memory = {};
  state.launched = {};
  free_blocks(state, state.device_memory, kAllDevices);
  free_blocks(state, state.host_memory, kAllDevices);
  state.registered_memory.clear();
  state.kernel_attributes.clear();
  state.quarantine.clear();
  state.context_ids.clear();
  state.contexts.clear();
  state.ended_after.clear();
}

void end_device(State& state, int device) {
  const auto is_of_device = [device](const auto& object) { return object.device == device; };
  std::vector<Stream*> streams;
  std::vector<cudaEvent_t> events;
  std::vector<cudaGraphExec_t> executables;
  state.streams.for_each([&](Stream& stream) {
    if (is_of_device(stream)) streams.push_back(&stream);
  });
  state.events.for_each([&](const Event& event) {
    if (is_of_device(event)) events.push_back(event.handle);
  });
  state.executables.for_each([&](const Executable& executable) {
    if (is_of_device(executable)) executables.push_back(executable.handle);
  });
  for (const auto& [owner, stream] : state.thread_streams) {
    // the streams themselves stay, because their threads refer to them
    if (is_of_device(*stream)) leave_capture(state, *stream);
  }
  for (Stream* stream : streams) {
    leave_capture(state, *stream);
    state.streams.remove(stream->handle);
  }
  for (const cudaEvent_t event : events) state.events.remove(event);
  for (const cudaGraphExec_t executable : executables) state.executables.remove(executable);
  std::erase_if(state.graph_memory.live, [device](const auto& entry) { return entry.second->device == device; });
  state.graph_memory.usage.erase(device);
  free_blocks(state, state.device_memory, device);
  free_blocks(state, state.host_memory, device);
  std::erase_if(state.registered_memory, [device](const auto& entry) { return entry.second.device == device; });
  std::erase_if(state.kernel_attributes, [device](const auto& entry) { return entry.first.second == device; });
  end_uploads(state, device);
  std::erase_if(state.peers, [device](const auto& peers) { return peers.first == device || peers.second == device; });
  state.context_ids.erase(device);
  state.ended_after[device] = context_uses(state);
}

std::uint64_t context_id(State& state, int device) {
  const auto ended = state.ended_after.find(device);
  if (ended != state.ended_after.end()) {
    if (ended->second == context_uses(state)) return 0;
    state.ended_after.erase(ended);
  }
  std::uint64_t& id = state.context_ids[device];
  if (id == 0) id = ++state.last_context_id;
  return id;
}

bool needs_context(Function function) {
  switch (function) {
    case Function::kGetLastError:
    case Function::kPeekAtLastError:
    case Function::kGetDevice:
    case Function::kSetDevice:
    case Function::kGetDeviceCount:
    case Function::kDriverGetVersion:
    case Function::kRuntimeGetVersion:
    case Function::kDeviceGraphMemTrim:
    case Function::kPointerGetAttributes:
    case Function::kThreadExchangeStreamCaptureMode:
    case Function::kGetDriverEntryPoint:
    case Function::kDeviceReset:
    case Function::kCtxGetId:
    case Function::kCtxCreate:
    case Function::kCtxDestroy:
    case Function::kCtxSetCurrent:
    case Function::kGraphCreate:
    case Function::kGraphClone:
    case Function::kGraphDestroy:
    case Function::kGraphGetNodes:
    case Function::kGraphGetEdges:
    case Function::kGraphGetRootNodes:
    case Function::kGraphNodeFindInClone:
    case Function::kGraphNodeGetDependencies:
    case Function::kGraphNodeGetType:
    case Function::kGraphKernelNodeGetAttribute:
    case Function::kGraphKernelNodeGetParams:
    case Function::kGraphExecUpdate:
    case Function::kGraphExecDestroy:
    case Function::kGraphNodeGetEnabled:
    case Function::kGraphNodeSetEnabled:
    case Function::kGraphNodeGetDependentNodes:
    case Function::kGraphChildGraphNodeGetGraph:
    case Function::kGraphConditionalHandleCreate:
    case Function::kGraphAddNode:
    case Function::kGraphEventRecordNodeGetEvent:
    case Function::kGraphEventWaitNodeGetEvent:
    case Function::kGraphMemAllocNodeGetParams:
    case Function::kGraphMemFreeNodeGetParams:
    case Function::kGraphExecGetFlags:
    case Function::kUserObjectCreate:
    case Function::kUserObjectRetain:
    case Function::kUserObjectRelease:
    case Function::kGraphRetainUserObject:
    case Function::kGraphReleaseUserObject:
      return false;
    default:
      return true;
  }
}

std::optional<cudaError_t> injected_failure(State& state, Function function) {
  const bool by_name_only = function == Function::kGetLastError || function == Function::kPeekAtLastError ||
                            function == Function::kGraphKernelNodeSetParam ||
                            function == Function::kGraphKernelNodeSetGridDim;
  std::optional<cudaError_t> error;
  for (Failure& failure : state.failures) {
    if (failure.function.has_value() ? *failure.function != function : by_name_only) continue;
    if (failure.calls_to_pass > 0) {
      --failure.calls_to_pass;
    } else if (!error.has_value()) {
      error = failure.error;
      if (failure.times > 0) --failure.times;
    }
  }
  if (error.has_value()) {
    ++state.failures_injected;
    state.failures.erase(std::remove_if(state.failures.begin(), state.failures.end(),
                                        [](const Failure& failure) { return failure.times == 0; }),
                         state.failures.end());
    if (is_sticky(*error)) {
      lose_context(state, *error);
      state.is_lost_by_failure = true;
    }
  }
  return error;
}

Event* find_event(const Call& call, cudaEvent_t handle) { return find(call, call.state.events, handle, "event"); }

Graph* find_graph(const Call& call, cudaGraph_t handle) { return find(call, call.state.graphs, handle, "graph"); }

Node* find_node(const Call& call, cudaGraphNode_t handle) { return find(call, call.state.nodes, handle, "node"); }

Executable* find_executable(const Call& call, cudaGraphExec_t handle) {
  return find(call, call.state.executables, handle, "executable graph");
}

UserObject* find_user_object(const Call& call, cudaUserObject_t handle) {
  return find(call, call.state.user_objects, handle, "user object");
}

Stream* find_stream(const Call& call, cudaStream_t handle) {
  if (Stream* stream = find_stream(call.state, call.thread, handle)) return stream;
  return find(call, call.state.streams, handle, "stream");
}

Stream* find_stream(State& state, Thread& thread, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return &legacy_stream(state, thread.device);
  if (handle == cudaStreamPerThread) return &thread_stream(state, thread);
  return state.streams.find(handle);
}

cudaError_t refuse_inside_work(State& state, Thread& thread, Function function, const void* address) {
  ++state.calls[static_cast<std::size_t>(function)];
  report_misuse(state, {name_of(function), ++state.last_call, thread.id, address},
                "called from inside a kernel or a host function", {{"executed", state.endings.here}});
  return latch(thread, cudaErrorNotPermitted);
}

}  // namespace graphcache::hostrt
