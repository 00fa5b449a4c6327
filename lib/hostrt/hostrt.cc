// Implements graphcache/hostrt.h: what a program asks hostrt itself.

#include "graphcache/hostrt.h"

#include <cstring>
#include <optional>
#include <string>

#include "exec.h"
#include "schedule.h"
#include "state.h"

namespace graphcache::hostrt {
namespace {

std::optional<Function> function_by_name(const char* name) {
  for (std::size_t i = 0; i < kFunctionCount; ++i) {
    if (std::strcmp(kFunctionNames[i], name) == 0) return static_cast<Function>(i);
  }
  return std::nullopt;
}

// Records a call of hostrt itself. A call from inside work does not replace the current call, which is the one that
// runs the work.
Place note_place(State& state, const char* function, const void* address) {
  Thread& thread = this_thread();
  if (thread.id == 0) introduce(state, thread);
  const Place here{function, 0, thread.id, address};
  if (!thread.in_work) state.endings.here = here;
  return here;
}

// Returns whether running work makes this call, and reports that as a misuse: the call must not disturb the queue that
// is being drained.
bool is_inside_work(State& state, const Place& here) {
  if (!this_thread().in_work) return false;
  report_misuse(state, here, "called from inside a kernel or a host function", {{"executed", state.endings.here}});
  return true;
}

// The stream for hold() or release(); null after reporting a misuse.
Stream* find_stream_for(State& state, const Place& here, cudaStream_t handle) {
  if (is_inside_work(state, here)) return nullptr;
  Thread& thread = this_thread();
  if (thread.epoch != state.epoch) refresh(state, thread);
  Stream* stream = find_stream(state, thread, handle);
  if (stream == nullptr) report_misuse(state, here, "not a live stream", {{"destroyed", state.endings.find(handle)}});
  return stream;
}

std::size_t total_bytes(const Memory& memory) {
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : memory) bytes += allocation.bytes;
  return bytes;
}

}  // namespace

void reset() {
  const Locked world;
  const Place here = note_place(*world, "hostrt::reset", __builtin_return_address(0));
  if (is_inside_work(*world, here)) return;
  cudaError_t unloading = cudaErrorCudartUnloading;
  runtime_gone.compare_exchange_strong(unloading, cudaSuccess);  // a forked child stays without a runtime
  destroy_everything(*world);
  defer_as_wanted(*world);
  world->device_count = 1;
  world->peers.clear();
  world->execute = true;
  ++world->epoch;  // threads refresh their values at their next call
  world->calls.fill(0);
  world->kernels_run = 0;
  world->failures.clear();
  world->failures_injected = 0;
  world->strays = 0;
  world->last_stray.clear();
  world->last_call = 0;
  world->misuses = 0;
  world->last_misuse.clear();
  world->misuse_log.clear();
}

void set_device_count(int count) {
  const Locked world;
  world->device_count = count < 1 ? 1 : count;
}

void set_stream_reuse(bool on) {
  const Locked world;
  world->streams.reuse(on);
}

void set_driver_version(int version) {
  const Locked world;
  world->driver_version = version;
}

void set_node_type(cudaGraphNode_t node, int type) {
  const Locked world;
  if (Node* const found = world->nodes.find(node)) found->reported_type = type;
}

void set_execution(bool on) {
  const Locked world;
  world->execute = on;
}

void hold(cudaStream_t stream) {
  const Locked world;
  const Place here = note_place(*world, "hold", __builtin_return_address(0));
  if (Stream* found = find_stream_for(*world, here, stream)) hold(*world, *found);
}

cudaError_t release(cudaStream_t stream) {
  const Locked world;
  const Place here = note_place(*world, "release", __builtin_return_address(0));
  Stream* found = find_stream_for(*world, here, stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  release(*world, *found);
  return world->lost;
}

void defer(std::uint64_t seed) {
  const Locked world;
  const Place here = note_place(*world, "defer", __builtin_return_address(0));
  if (!is_inside_work(*world, here)) defer(*world, seed);
}

Ledger ledger() {
  const Locked world;
  Ledger ledger;
  ledger.streams = world->streams.size();
  ledger.events = world->events.size();
  world->graphs.for_each([&](const Graph& graph) { ledger.graphs += graph.parent == nullptr ? 1 : 0; });
  ledger.nodes = world->nodes.size();
  ledger.executables = world->executables.size();
  world->executables.for_each(
      [&](const Executable& executable) { ledger.executable_nodes += node_count(*executable.program); });
  ledger.user_objects = world->user_objects.size();
  ledger.captures = world->captures.size();
  ledger.allocations = world->device_memory.size();
  ledger.allocated_bytes = total_bytes(world->device_memory);
  ledger.graph_allocations = world->graph_memory.live.size();
  for (const auto& [address, block] : world->graph_memory.live) ledger.graph_allocated_bytes += block->bytes;
  ledger.host_allocations = world->host_memory.size();
  ledger.host_allocated_bytes = total_bytes(world->host_memory);
  return ledger;
}

std::uint64_t calls() {
  const Locked world;
  std::uint64_t sum = 0;
  for (const std::uint64_t count : world->calls) sum += count;
  return sum;
}

std::uint64_t calls(const char* function) {
  const std::optional<Function> found = function_by_name(function);
  const Locked world;
  return found.has_value() ? world->calls[static_cast<std::size_t>(*found)] : 0;
}

std::map<std::string, std::uint64_t> call_counts() {
  const Locked world;
  std::map<std::string, std::uint64_t> counts;
  for (std::size_t i = 0; i < kFunctionCount; ++i) {
    if (world->calls[i] != 0) counts.emplace(kFunctionNames[i], world->calls[i]);
  }
  return counts;
}

void reset_calls() {
  const Locked world;
  world->calls.fill(0);
  world->kernels_run = 0;
}

std::uint64_t kernels_run() {
  const Locked world;
  return world->kernels_run;
}

std::uint64_t strays() {
  const Locked world;
  return world->strays;
}

std::string last_stray() {
  const Locked world;
  return world->last_stray;
}

void fail_call(const char* function, int nth, cudaError_t error, int times) {
  const bool is_any = std::strcmp(function, "*") == 0;
  const std::optional<Function> found = function_by_name(function);
  const Locked world;
  if (!is_any && !found.has_value()) {
    const Place here = note_place(*world, "fail_call", __builtin_return_address(0));
    report_misuse(*world, here, std::string("no function is called ") + function);
    return;
  }
  if (times == 0) return;
  world->failures.push_back(Failure{found, nth > 1 ? nth - 1 : 0, error, times});
}

void clear_failures() {
  const Locked world;
  world->failures.clear();
  if (world->is_lost_by_failure) world->lost = cudaSuccess;
  world->is_lost_by_failure = false;
}

std::uint64_t failures_injected() {
  const Locked world;
  return world->failures_injected;
}

bool in_call() { return this_thread().in_call; }

std::uint64_t misuses() {
  const Locked world;
  return world->misuses;
}

std::string last_misuse() {
  const Locked world;
  return world->last_misuse;
}

std::vector<std::string> misuse_log() {
  const Locked world;
  return world->misuse_log;
}

void abort_on_misuse(bool on) {
  const Locked world;
  world->abort_on_misuse = on;
}

int threads_inside() {
  const Presences& records = presences();
  int count = 0;
  for (std::size_t i = 0; i < records.used; ++i) count += records.all[i].is_inside ? 1 : 0;
  return count;
}

void unload() {
  const Locked world;
  runtime_gone = cudaErrorCudartUnloading;
}

}  // namespace graphcache::hostrt
