// The random operations of a thread of the stress test, and the checks after each.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "stress_world.h"
#include "structure/checks.h"
#include "support.h"

namespace graphcache::test::stress {
namespace {

// Failures of calls by the library and by `fn`.
struct Failure {
  const char* function;
  cudaError_t error;
};
constexpr Failure kFailures[] = {
    {"cudaGraphInstantiate", cudaErrorMemoryAllocation},
    {"cudaGraphInstantiate", cudaErrorNotSupported},
    {"cudaGraphInstantiate", cudaErrorInvalidValue},
    {"cudaGraphLaunch", cudaErrorMemoryAllocation},
    {"cudaGraphLaunch", cudaErrorInvalidValue},
    {"cudaGraphExecUpdate", cudaErrorGraphExecUpdateFailure},
    {"cudaGraphExecUpdate", cudaErrorMemoryAllocation},
    {"cudaGraphExecKernelNodeSetParams", cudaErrorInvalidValue},
    {"cudaGraphExecMemcpyNodeSetParams1D", cudaErrorInvalidValue},
    {"cudaGraphExecMemsetNodeSetParams", cudaErrorInvalidValue},
    {"cudaGraphUpload", cudaErrorMemoryAllocation},
    {"cudaGraphClone", cudaErrorMemoryAllocation},
    {"cudaGraphGetNodes", cudaErrorInvalidValue},
    {"cudaGraphNodeGetType", cudaErrorInvalidValue},
    {"cudaGraphNodeGetDependencies", cudaErrorInvalidValue},
    {"cudaGraphKernelNodeGetParams", cudaErrorInvalidValue},
    {"cudaGraphKernelNodeGetAttribute", cudaErrorInvalidValue},
    {"cudaGraphMemcpyNodeGetParams", cudaErrorInvalidValue},
    {"cudaGraphMemsetNodeGetParams", cudaErrorInvalidValue},
    {"cudaPointerGetAttributes", cudaErrorInvalidValue},
    {"cudaStreamBeginCapture", cudaErrorMemoryAllocation},
    {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated},
    {"cudaStreamEndCapture", cudaErrorMemoryAllocation},
    {"cudaStreamGetCaptureInfo", cudaErrorInvalidValue},
    {"cudaStreamIsCapturing", cudaErrorInvalidValue},
    {"cudaStreamGetDevice", cudaErrorInvalidValue},
    {"cudaGetDevice", cudaErrorInvalidValue},
    {"cudaDeviceGraphMemTrim", cudaErrorInvalidValue},
    {"cudaLaunchKernel", cudaErrorLaunchOutOfResources},
    {"cudaMemcpyAsync", cudaErrorInvalidValue},
    {"cudaMemsetAsync", cudaErrorInvalidValue},
    {"cudaStreamWaitEvent", cudaErrorInvalidResourceHandle},
    {"cudaEventCreateWithFlags", cudaErrorMemoryAllocation},
    {"cudaEventRecord", cudaErrorInvalidValue},
    {"cudaEventQuery", cudaErrorNotReady},
    {"cudaMalloc", cudaErrorMemoryAllocation},
    {"cudaMallocHost", cudaErrorMemoryAllocation},
    {"cudaMallocAsync", cudaErrorMemoryAllocation},
    {"cudaFreeAsync", cudaErrorInvalidValue},
    {"cudaLibraryLoadData", cudaErrorNoKernelImageForDevice},
    {"cudaLibraryGetKernel", cudaErrorSymbolNotFound},
    {"cudaKernelGetFunction", cudaErrorInvalidResourceHandle},
    {"cudaGraphKernelNodeSetAttribute", cudaErrorNotSupported},
    {"cudaFuncGetParamInfo", cudaErrorInvalidResourceHandle},
    {"cudaGraphGetRootNodes", cudaErrorInvalidValue},
    {"cudaGraphAddKernelNode", cudaErrorMemoryAllocation},
    {"cudaGraphAddDependencies", cudaErrorInvalidValue},
};

}  // namespace

Lane::Lane(World& world, int number)
    : world_(world), number_(number), device_(number % 4 == 3 ? 1 : 0), stream_(own_stream_) {
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory_), sizeof(Memory)));
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&apart_), sizeof(Memory)));
  *memory_ = *apart_ = {};
}

Lane::~Lane() {
  cudaFree(memory_);
  cudaFree(apart_);
}

void Lane::fail(const std::string& what) {
  world_.fail("thread " + std::to_string(number_) + ", operation " + std::to_string(operation_) + ", " + doing_ + ": " +
              what);
}

void Lane::work() {
  CUDA_OK(cudaSetDevice(device_));
  for (operation_ = 0; operation_ < kOperations && !world_.stopped; ++operation_) {
    operate(Random(world_.plan.seed, static_cast<std::uint64_t>(number_), static_cast<std::uint64_t>(operation_)));
    ++operations;
    expect_left_alone();
  }
}

void Lane::operate(Random random) {
  const Plan& plan = world_.plan;
  if (plan.injects && random.one_in(6)) {
    const Failure& failure = random.of(kFailures);
    hostrt::fail_call(failure.function, 1 + random.below(4), failure.error, 1 + random.below(2));
  }
  if (plan.dies && operation_ == kOperations / 2 && number_ == 0) {
    world_.dying = true;
    hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  }
  if (plan.holds && random.one_in(8)) hostrt::hold(stream_);
  if (device_ == 0 && random.one_in(32)) {
    synchronize();
    stream_ = stream_ == cudaStreamPerThread ? static_cast<cudaStream_t>(own_stream_) : cudaStreamPerThread;
  }
  if (random.one_in(8)) std::this_thread::yield();
  if (random.one_in(64)) {
    if (const std::string fault = StructureChecker::find_fault(world_.cache); !fault.empty()) fail(fault);
  }
  const int what = random.below(100);
  const auto one_of = [&](int below, const char* name, void (Lane::*operation)(Random&)) {
    if (what >= below) return false;
    doing_ = name;
    (this->*operation)(random);
    return true;
  };
  one_of(66, "run", &Lane::run) || one_of(86, "run of its own key", &Lane::run_own) ||
      one_of(90, "warm", &Lane::warm) || one_of(93, "forget", &Lane::forget) || one_of(96, "pin", &Lane::pin) ||
      one_of(100, "look", &Lane::look);
}

void Lane::finish() {
  synchronize();
  compare("at the end");
}

Values Lane::random_values(Random& random) const {
  Values values;
  values.a = random.below(5);
  values.grid = static_cast<unsigned>(1 + random.below(2));
  // A capture with a size of 0 is not kept.
  values.bytes = static_cast<std::size_t>(world_.plan.gentle ? 1 + random.below(31) : random.below(32));
  return values;
}

Behaviour random_behaviour(Random& random, const Plan& plan) {
  Behaviour behaviour;
  if (plan.gentle || !random.one_in(10)) return behaviour;
  constexpr Behaviour::Kind kKinds[] = {Behaviour::kReturns, Behaviour::kThrows, Behaviour::kLeaves,
                                        Behaviour::kBreaks};
  behaviour.kind = random.of(kKinds);
  behaviour.before = static_cast<std::size_t>(random.below(2));
  return behaviour;
}

void Lane::run(Random& random) {
  KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const Values values = random_values(random);
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  settle(call(state, stream_, values, behaviour), {{&state.recipe, values, &Lane::expected_}}, behaviour);
}

// A graph that contains this lane's memory. Its siblings belong to other lanes.
void Lane::run_own(Random& random) {
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  const int which = random.below(kOwnKeys + 1);
  const auto number = static_cast<std::size_t>(number_);
  if (which < kOwnKeys) {
    KeyState& state = *world_.own[number * kOwnKeys + static_cast<std::size_t>(which)];
    const Values values{which, 2, 8};
    const std::uint64_t forgettings = forgettings_begun(state);
    const int captures = state.captures;
    const auto outcome = call_own(state, stream_, values, memory_, behaviour, Nested::kNone);
    if (which == 0 && pinned_recorded_ && forgettings == pinned_at_ && forgettings_begun(state) == pinned_at_ &&
        state.captures != captures && !world_.plan.injects) {
      fail("a pinned key was captured again");
    }
    return settle(outcome, {{&state.recipe, values, &Lane::expected_}}, behaviour);
  }
  // One that makes another run after its first step.
  const int kind = world_.plan.gentle ? 0 : random.below(3);  // the other kinds keep it from being captured
  KeyState& state = *world_.outer[number * 3 + static_cast<std::size_t>(kind)];
  const Values values{5, 1, 12};
  const Recipe first(state.recipe.begin(), state.recipe.begin() + 1),
      rest(state.recipe.begin() + 1, state.recipe.end());
  std::vector<Part> parts = {{&first, values, &Lane::expected_}};
  const Nested nested[] = {Nested::kInlined, Nested::kWithParams, Nested::kElsewhere};
  switch (nested[kind]) {
    case Nested::kInlined:
      parts.push_back({&world_.own[number * kOwnKeys + 1]->recipe, Values{1, 2, 8}, &Lane::expected_});
      break;
    case Nested::kWithParams:
      parts.push_back({&world_.shared[0]->recipe, Values{3, 2, 8}, &Lane::expected_});
      break;
    default:
      parts.push_back({&world_.apart[number]->recipe, Values{4, 1, 16}, &Lane::expected_apart_});
  }
  parts.push_back({&rest, values, &Lane::expected_});
  settle(call_own(state, stream_, values, memory_, behaviour, nested[kind]), parts, behaviour);
}

std::uint64_t Lane::forgettings_begun(const KeyState& state) const {
  return world_.clears_begun + state.erasures_begun;
}

void Lane::forget(Random& random) {
  if (world_.plan.gentle) return;
  if (random.one_in(20)) {
    ++world_.clears_begun;
    const std::uint64_t begin = ++world_.clock;
    world_.cache.clear();
    raise(world_.cleared, begin);
    ++world_.clears_over;
    return;
  }
  KeyState& state = random.one_in(2) ? *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))]
                                     : *world_.own[static_cast<std::size_t>(random.below(kThreads * kOwnKeys))];
  ++state.erasures_begun;
  const std::uint64_t begin = ++world_.clock;
  world_.cache.erase(state.key);
  raise(state.forgotten, begin);
  ++state.erasures_over;
}

void Lane::pin(Random& random) {
  KeyState& mine = *world_.own[static_cast<std::size_t>(number_ * kOwnKeys)];
  KeyState& shared = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const int what = random.below(6);
  if (what == 0) {
    world_.cache.pin(shared.key);
  } else if (what <= 2) {
    world_.cache.unpin(shared.key);
  } else if (what == 3) {
    pinned_recorded_ = false;
    world_.cache.unpin(mine.key);
  } else {
    const std::uint64_t over = world_.clears_over + mine.erasures_over;
    const std::uint64_t forgettings = forgettings_begun(mine);
    const bool pinned = world_.cache.pin(mine.key);
    pinned_recorded_ = world_.cache.contains(mine.key) && pinned && forgettings == over;
    pinned_at_ = forgettings;
  }
}

void Lane::look(Random& random) {
  const int what = random.below(4);
  if (what <= 1) {
    KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
    const bool recorded = state.captures == 1 && state.capturing == 0;
    const std::uint64_t forgotten = std::max(state.forgotten.load(), world_.cleared.load());
    const bool contained = world_.cache.contains(state.key);
    if (contained && !may_be_recorded(state, forgotten)) fail("a key is contained that was never recorded");
    if (world_.plan.gentle && recorded && !contained) fail("a recorded key is not contained");
  } else if (what == 2) {
    const Stats stats = world_.cache.stats();
    std::uint64_t mine = failed;
    for (const std::uint64_t count : outcomes) mine += count;
    if (stats.runs() < mine) fail("the counters lack runs that are over");
    if (stats.live_executables > static_cast<std::uint64_t>(world_.plan.options.max_executables)) {
      fail("there are too many executables");
    }
  } else {
    const std::vector<EntryInfo> entries = world_.cache.entries();
    std::size_t live = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      live += entries[i].live;
      if (entries[i].last_use_order != i) fail("entries are not in order of use");
      if (entries[i].live && !entries[i].recorded) fail("an entry is live and not recorded");
    }
    if (live > static_cast<std::size_t>(world_.plan.options.max_executables)) fail("too many entries are live");
  }
}

// Law 4. Failures may be injected into these queries as well.
void Lane::expect_left_alone() {
  if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) {
    fail(std::string("an error was left behind: ") + cudaGetErrorName(error));
    cudaGetLastError();
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    fail("the stream was left capturing");
  }
  int device = device_;
  if (cudaGetDevice(&device) == cudaSuccess && device != device_) fail("the current device was left another");
  if (operation_ % 8 == 0 && thread_capture_mode() != cudaStreamCaptureModeGlobal) {
    fail("the thread's capture mode was left another");
  }
  cudaGetLastError();
}

}  // namespace graphcache::test::stress
