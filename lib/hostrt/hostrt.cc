// The public contract: what a program asks hostrt itself. See graphcache/hostrt.h.

#include "graphcache/hostrt.h"

#include <cstring>
#include <optional>
#include <string>

#include "exec.h"
#include "schedule.h"
#include "state.h"

namespace graphcache::hostrt {
namespace {

// A kernel may ask, too: its thread holds the lock already.
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

std::optional<Function> function_by_name(const char* name) {
  for (std::size_t i = 0; i < kFunctionCount; ++i) {
    if (std::strcmp(kFunctionNames[i], name) == 0) return static_cast<Function>(i);
  }
  return std::nullopt;
}

void count_misuse(State& state, const std::string& what) {
  ++state.misuses;
  state.last_misuse = what;
}

// The stream of a call of hold() or release(), or null and a misuse. Neither may disturb the draining of a queue.
Stream* find_stream_for(State& state, const char* function, cudaStream_t handle) {
  Thread& thread = this_thread();
  if (thread.in_work) {
    count_misuse(state, std::string(function) + ": called from inside a kernel or a host function");
    return nullptr;
  }
  if (thread.epoch != state.epoch) refresh(state, thread);
  Stream* stream = find_stream(state, thread, handle);
  if (stream == nullptr) count_misuse(state, std::string(function) + ": not a live stream");
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
  destroy_everything(*world);
  defer_as_wanted(*world);
  world->device_count = 1;
  world->execute = true;
  ++world->epoch;  // threads notice at their next call
  world->calls.fill(0);
  world->kernels_run = 0;
  world->failures.clear();
  world->failures_injected = 0;
  world->misuses = 0;
  world->last_misuse.clear();
}

void set_device_count(int count) {
  const Locked world;
  world->device_count = count < 1 ? 1 : count;
}

void set_execution(bool on) {
  const Locked world;
  world->execute = on;
}

void hold(cudaStream_t stream) {
  const Locked world;
  if (Stream* found = find_stream_for(*world, "hold", stream)) hold(*world, *found);
}

cudaError_t release(cudaStream_t stream) {
  const Locked world;
  Stream* found = find_stream_for(*world, "release", stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  release(*world, *found);
  return world->lost;
}

void defer(std::uint64_t seed) {
  const Locked world;
  if (this_thread().in_work) {
    count_misuse(*world, "defer: called from inside a kernel or a host function");
  } else {
    defer(*world, seed);
  }
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

void fail_call(const char* function, int nth, cudaError_t error, int times) {
  const bool is_any = std::strcmp(function, "*") == 0;
  const std::optional<Function> found = function_by_name(function);
  const Locked world;
  if (!is_any && !found.has_value()) {
    count_misuse(*world, std::string("fail_call: no function is called ") + function);
    return;
  }
  if (times == 0) return;
  world->failures.push_back(Failure{found, nth > 1 ? nth - 1 : 0, error, times});
}

void clear_failures() {
  const Locked world;
  world->failures.clear();
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

}  // namespace graphcache::hostrt
