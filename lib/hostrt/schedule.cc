#include "schedule.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "device_nodes.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

constexpr std::uint64_t kPiecesAtOnce = 4;  // a call runs fewer pieces than this

template <typename Visitor>
void for_each_stream(const State& state, Visitor&& visit) {
  state.streams.for_each(visit);
  for (const auto& stream : state.legacy_streams) {
    if (stream != nullptr) visit(*stream);
  }
  for (const auto& [owner, stream] : state.thread_streams) visit(*stream);
  for (const auto& stream : state.retired_streams) visit(*stream);
}

bool is_busy(const Stream& stream) { return stream.held || !stream.queue.empty(); }

// The legacy stream and the blocking streams of its device wait for each other.
bool are_ordered(const Stream& a, const Stream& b) {
  return a.is_blocking() && b.is_blocking() && a.is_legacy != b.is_legacy && a.device == b.device;
}

std::uint64_t push_mark(State& state, Stream& stream) {
  const std::uint64_t number = ++state.last_mark;
  stream.queue.push_back(Mark{number});
  state.marks_ahead.insert(number);
  return number;
}

void wait_for_ordered(State& state, Stream& stream) {
  for_each_stream(state, [&](Stream& other) {
    if (are_ordered(stream, other) && is_busy(other)) wait_for(state, stream, push_mark(state, other));
  });
}

void unhold(State& state, Stream& stream) {
  if (!stream.held) return;
  stream.held = false;
  --state.held_streams;
}

// Drops all queued work.
void drop_all(State& state) {
  for_each_stream(state, [](Stream& stream) {
    stream.queue.clear();
    stream.progress.nodes_left = 0;
    stream.held = false;
  });
  state.held_streams = 0;
  state.marks_ahead.clear();
}

// `work` is an operation or the parameters of a node.
template <typename Work>
void run(State& state, const Work& work) {
  if (const cudaError_t error = execute(state, work); error != cudaSuccess) state.lost = error;
}

// Removes entries that need no execution from the front of the queue. Returns whether the next entry may run.
bool may_run(State& state, Stream& stream) {
  if (stream.held) return false;
  for (; !stream.queue.empty(); stream.queue.pop_front()) {
    const Operation& front = stream.queue.front();
    if (const auto* mark = std::get_if<Mark>(&front)) {
      state.marks_ahead.erase(mark->number);
    } else if (const auto* wait = std::get_if<Wait>(&front); wait == nullptr || !has_passed(state, wait->mark)) {
      return wait == nullptr;
    }
  }
  return false;
}

// ---- In order ----

void drain(State& state, Stream& stream) {
  while (state.lost == cudaSuccess && may_run(state, stream)) {
    run(state, stream.queue.front());
    stream.queue.pop_front();
  }
}

// Repeats, because a mark passed by one stream may allow another's work to run.
void drain_all(State& state) {
  for (bool advanced = true; advanced && state.lost == cudaSuccess;) {
    advanced = false;
    for_each_stream(state, [&](Stream& stream) {
      const std::size_t before = stream.queue.size();
      drain(state, stream);
      advanced = advanced || stream.queue.size() != before;
    });
  }
}

// ---- In random order ----

// A disabled memset node does not order what follows it after what precedes it (docs/semantics.md).
bool keeps_order(const ProgramNode& node) { return node.enabled || !std::holds_alternative<FillParams>(node.params); }

void start(Stream& stream, const Program& program) {
  GraphProgress& progress = stream.progress;
  progress.waiting_for.assign(program.nodes.size(), 0);
  progress.ready.clear();
  progress.nodes_left = program.nodes.size();
  for (std::uint32_t i = 0; i < program.nodes.size(); ++i) {
    for (const auto& dependency : program.nodes[i].dependencies) {
      if (keeps_order(program.nodes[dependency.position])) ++progress.waiting_for[i];
    }
    if (progress.waiting_for[i] == 0) progress.ready.push_back(i);
  }
}

// Runs one node of the graph at the front of the queue.
void advance(State& state, Stream& stream, const GraphRun& launch) {
  const Program& program = *launch.program;
  GraphProgress& progress = stream.progress;
  if (progress.nodes_left == 0) start(stream, program);
  if (progress.nodes_left != 0) {
    std::swap(progress.ready[draw(state, progress.ready.size())], progress.ready.back());
    const std::uint32_t position = progress.ready.back();
    progress.ready.pop_back();
    --progress.nodes_left;
    const ProgramNode& node = program.nodes[position];
    state.launched = launch.launched;
    state.running = &program;
    if (node.enabled) run(state, params_to_run(program, node));
    if (keeps_order(node)) {
      for (const std::uint32_t dependent : node.dependents) {
        if (--progress.waiting_for[dependent] == 0) progress.ready.push_back(dependent);
      }
    }
  }
  if (progress.nodes_left == 0) stream.queue.pop_front();
}

// Runs one piece of work of any stream; returns false if none may run.
bool run_piece(State& state) {
  state.runnable.clear();
  for (bool passed = true; passed;) {  // passing a mark may allow other streams to continue
    const std::size_t ahead = state.marks_ahead.size();
    state.runnable.clear();
    for_each_stream(state, [&](Stream& stream) {
      if (may_run(state, stream)) state.runnable.push_back(&stream);
    });
    passed = state.marks_ahead.size() != ahead;
  }
  if (state.runnable.empty()) return false;
  Stream& stream = *state.runnable[draw(state, state.runnable.size())];
  if (const auto* launch = std::get_if<GraphRun>(&stream.queue.front())) {
    advance(state, stream, *launch);
  } else {
    run(state, stream.queue.front());
    stream.queue.pop_front();
  }
  return true;
}

// ---- Waiting ----

// Runs what may run; in deferred execution, one piece. Returns false if nothing is left except what waits for a held
// stream.
bool run_some(State& state) {
  if (state.deferred) return run_piece(state);
  drain_all(state);
  return state.lost != cudaSuccess;
}

bool contains(const Stream& stream, std::uint64_t mark) {
  return std::any_of(stream.queue.begin(), stream.queue.end(), [mark](const Operation& operation) {
    const auto* found = std::get_if<Mark>(&operation);
    return found != nullptr && found->number == mark;
  });
}

// Releases the held stream that blocks this one. A mark is set before anything waits for it, so there is such a stream.
void release_obstacle(State& state, Stream& stream) {
  Stream* at = &stream;
  while (!at->held) {
    const std::uint64_t awaited = std::get<Wait>(at->queue.front()).mark;
    Stream* holder = nullptr;
    for_each_stream(state, [&](Stream& other) {
      if (holder == nullptr && contains(other, awaited)) holder = &other;
    });
    at = holder;
  }
  unhold(state, *at);
}

}  // namespace

void lose_context(State& state, cudaError_t error) {
  state.lost = error;
  drop_all(state);
}

bool is_lazy(const State& state) { return state.held_streams != 0 || state.deferred; }

void enqueue(State& state, Stream& stream, Operation operation) {
  if (!state.execute || state.lost != cudaSuccess) return;  // another node of the same launch has failed
  if (!is_lazy(state)) return run(state, operation);
  wait_for_ordered(state, stream);
  stream.queue.push_back(std::move(operation));
  if (state.deferred) return progress(state);
  drain(state, stream);
  if (state.lost != cudaSuccess) drop_all(state);
}

void hold(State& state, Stream& stream) {
  if (stream.held) return;
  stream.held = true;
  ++state.held_streams;
}

void release(State& state, Stream& stream) {
  if (!stream.held) return;
  unhold(state, stream);
  if (!state.deferred) drain_all(state);
  if (state.lost != cudaSuccess) drop_all(state);
}

void defer(State& state, std::uint64_t seed) {
  state.deferred = true;
  state.lot = seed;
}

void defer_as_wanted(State& state) {
  state.deferred = false;
  if (const char* seed = std::getenv("GRAPHCACHE_HOSTRT_SEED"); seed != nullptr && *seed != '\0') {
    defer(state, std::strtoull(seed, nullptr, 10));
  }
}

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t draw(State& state, std::uint64_t bound) {
  std::uint64_t z = state.lot += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % bound;
}

void progress(State& state) {
  if (!state.deferred) return;
  std::erase_if(state.retired_streams, [](const auto& stream) { return !is_busy(*stream); });
  for (std::uint64_t pieces = draw(state, kPiecesAtOnce); pieces != 0 && state.lost == cudaSuccess; --pieces) {
    if (!run_piece(state)) break;
  }
  if (state.lost != cudaSuccess) drop_all(state);
}

std::uint64_t mark(State& state, Stream& stream) {
  if (!is_lazy(state)) return 0;
  wait_for_ordered(state, stream);
  return is_busy(stream) ? push_mark(state, stream) : 0;
}

bool has_passed(const State& state, std::uint64_t mark) { return mark == 0 || state.marks_ahead.count(mark) == 0; }

void wait_for(const State& state, Stream& stream, std::uint64_t mark) {
  if (!has_passed(state, mark)) stream.queue.push_back(Wait{mark});
}

void order_blocking_streams(State& state, Stream& legacy) {
  if (is_lazy(state)) wait_for_ordered(state, legacy);
}

bool is_idle(State& state, const Stream& stream) {
  bool busy = is_busy(stream);
  if (stream.is_legacy && is_lazy(state)) {
    for_each_stream(state, [&](const Stream& other) { busy = busy || (are_ordered(stream, other) && is_busy(other)); });
  }
  return !busy;
}

void finish(State& state, Stream& stream) {
  if (!is_lazy(state)) return;
  if (stream.is_legacy) wait_for_ordered(state, stream);
  release(state, stream);
  while (state.lost == cudaSuccess && !stream.queue.empty()) {
    if (!run_some(state) && !stream.queue.empty()) release_obstacle(state, stream);
  }
  if (state.lost != cudaSuccess) drop_all(state);
}

void finish(State& state, std::uint64_t mark) {
  while (state.lost == cudaSuccess && !has_passed(state, mark)) {
    Stream* holder = nullptr;
    for_each_stream(state, [&](Stream& stream) {
      if (holder == nullptr && contains(stream, mark)) holder = &stream;
    });
    if (!run_some(state) && !has_passed(state, mark)) release_obstacle(state, *holder);
  }
  if (state.lost != cudaSuccess) drop_all(state);
}

void finish_device(State& state, int device) {
  end_uploads(state, device);
  if (!is_lazy(state)) return;
  std::vector<Stream*> streams;
  for_each_stream(state, [&](Stream& stream) {
    if (device == kAllDevices || stream.device == device) streams.push_back(&stream);
  });
  for (Stream* stream : streams) finish(state, *stream);
}

void retire(State& state, std::unique_ptr<Stream> stream) {
  Stream& retired = *state.retired_streams.emplace_back(std::move(stream));
  release(state, retired);
  if (!is_busy(retired)) state.retired_streams.pop_back();
}

}  // namespace graphcache::hostrt
