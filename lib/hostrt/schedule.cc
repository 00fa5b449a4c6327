#include "schedule.h"

#include <algorithm>
#include <utility>

#include "work.h"

namespace graphcache::hostrt {
namespace {

template <typename Visitor>
void for_each_stream(const State& state, Visitor&& visit) {
  state.streams.for_each(visit);
  for (const auto& stream : state.legacy_streams) {
    if (stream != nullptr) visit(*stream);
  }
  for (const auto& [owner, stream] : state.thread_streams) visit(*stream);
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

bool may_run(const State& state, const Operation& operation) {
  const auto* wait = std::get_if<Wait>(&operation);
  return wait == nullptr || has_passed(state, wait->mark);
}

cudaError_t drain(State& state, Stream& stream) {
  cudaError_t error = cudaSuccess;
  auto operation = stream.queue.begin();
  for (; operation != stream.queue.end() && may_run(state, *operation); ++operation) {
    if (const auto* passed = std::get_if<Mark>(&*operation)) {
      state.marks_ahead.erase(passed->number);
    } else if (const cudaError_t failed = execute(state, *operation); failed != cudaSuccess) {
      error = failed;
    }
  }
  stream.queue.erase(stream.queue.begin(), operation);  // keeps its storage: a graph launch allocates nothing
  return error;
}

// Marks that one stream passes may let another's work run.
cudaError_t drain_all(State& state) {
  cudaError_t error = cudaSuccess;
  for (bool progress = true; progress;) {
    progress = false;
    for_each_stream(state, [&](Stream& stream) {
      if (stream.held || stream.queue.empty() || !may_run(state, stream.queue.front())) return;
      progress = true;
      if (const cudaError_t failed = drain(state, stream); failed != cudaSuccess) error = failed;
    });
  }
  return error;
}

bool contains(const Stream& stream, std::uint64_t mark) {
  return std::any_of(stream.queue.begin(), stream.queue.end(), [mark](const Operation& operation) {
    const auto* found = std::get_if<Mark>(&operation);
    return found != nullptr && found->number == mark;
  });
}

}  // namespace

cudaError_t enqueue(State& state, Stream& stream, Operation operation) {
  if (!state.execute) return cudaSuccess;
  if (state.held_streams != 0) wait_for_ordered(state, stream);
  stream.queue.push_back(std::move(operation));
  return stream.held ? cudaSuccess : drain(state, stream);
}

void hold(State& state, Stream& stream) {
  if (stream.held) return;
  stream.held = true;
  ++state.held_streams;
}

cudaError_t release(State& state, Stream& stream) {
  if (!stream.held) return cudaSuccess;
  stream.held = false;
  --state.held_streams;
  return drain_all(state);
}

std::uint64_t mark(State& state, Stream& stream) {
  if (state.held_streams == 0) return 0;
  wait_for_ordered(state, stream);
  return is_busy(stream) ? push_mark(state, stream) : 0;
}

bool has_passed(const State& state, std::uint64_t mark) { return mark == 0 || state.marks_ahead.count(mark) == 0; }

void wait_for(const State& state, Stream& stream, std::uint64_t mark) {
  if (!has_passed(state, mark)) stream.queue.push_back(Wait{mark});
}

bool is_idle(State& state, const Stream& stream) {
  bool busy = is_busy(stream);
  if (stream.is_legacy && state.held_streams != 0) {
    for_each_stream(state, [&](const Stream& other) { busy = busy || (are_ordered(stream, other) && is_busy(other)); });
  }
  return !busy;
}

cudaError_t finish(State& state, Stream& stream) {
  cudaError_t error = release(state, stream);
  const auto keep = [&error](cudaError_t failed) {
    if (failed != cudaSuccess) error = failed;
  };
  // What is left begins with a wait. Marks are waited for after they are set, so this comes to an end.
  while (!stream.queue.empty()) keep(finish(state, std::get<Wait>(stream.queue.front()).mark));
  if (stream.is_legacy && state.held_streams != 0) {
    for_each_stream(state, [&](Stream& other) {
      if (are_ordered(stream, other)) keep(finish(state, other));
    });
  }
  return error;
}

cudaError_t finish(State& state, std::uint64_t mark) {
  if (has_passed(state, mark)) return cudaSuccess;
  Stream* holder = nullptr;
  for_each_stream(state, [&](Stream& stream) {
    if (holder == nullptr && contains(stream, mark)) holder = &stream;
  });
  return finish(state, *holder);
}

cudaError_t finish_device(State& state, int device) {
  cudaError_t error = cudaSuccess;
  if (state.held_streams == 0) return error;
  for_each_stream(state, [&](Stream& stream) {
    if (device != kAllDevices && stream.device != device) return;
    if (const cudaError_t failed = finish(state, stream); failed != cudaSuccess) error = failed;
  });
  return error;
}

}  // namespace graphcache::hostrt
