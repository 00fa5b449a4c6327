#include "lane.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace graphcache::test::differential {
inline namespace GRAPHCACHE_TEST_UNIT {
namespace {

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool kIsPerThread = true;
#else
constexpr bool kIsPerThread = false;
#endif

// The error of a run that is nested in another run's work.
cudaError_t error_of(const absl::Status& status) {
  if (status.ok()) return cudaSuccess;
  const cudaError_t error = cuda_error(status);
  return error != cudaSuccess ? error : cudaErrorUnknown;
}

auto params_of(const Values& v) {
  return params(v.out, v.in, v.to, v.from, v.base, v.a, v.b, v.grid, v.pairs, v.block, v.shared_bytes, v.bytes, v.real,
                v.wide, v.small, v.big,
#define GRAPHCACHE_TEST_VALUE(name, size, alignment, before, other) , v.name
                v.aligned GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_VALUE));
#undef GRAPHCACHE_TEST_VALUE
}

}  // namespace

Lane::Lane(World& world, Cache& cache, int number)
    : world_(world),
      cache_(cache),
      settings_(world.settings),
      programs_(settings_.programs),
      number_(number),
      random_(settings_.seed, 1, static_cast<std::uint64_t>(number)),
      cached_(random_, programs_, settings_.registers),
      direct_(random_, programs_, settings_.registers),
      steps_(programs_.size()) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  const auto make_stream = [&](bool may_block) {
    cudaStream_t stream = nullptr;
    const int priority = settings_.priorities ? least - random_.below(least - greatest + 1) : least;
    const bool blocks = may_block && random_.one_in(2) && !settings_.default_stream;
    const unsigned flags = blocks ? cudaStreamDefault : cudaStreamNonBlocking;
    check(cudaStreamCreateWithPriority(&stream, flags, priority), "cudaStreamCreateWithPriority");
    return stream;
  };
  const int count = 1 + random_.below(4);
  for (int i = 0; i < count; ++i) streams_.push_back(make_stream(true));
  for (cudaStream_t& stream : forks_) stream = make_stream(true);
  // A per-thread lane may also run directly on stream 0.
  const std::size_t made = kIsPerThread && random_.one_in(2) ? 1 : 0;
  for (std::size_t i = made; i < direct_streams_.size(); ++i) direct_streams_[i] = make_stream(false);
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  direct_.assign(cached_, direct_streams_[0]);
  draw_ = {kTargets, kSources, kTargets, kSources, {}};
  draw_.values.grid = dim3(2);
  draw_.values.pairs = dim3(2);
  draw_.values.block = 32;
  draw_.values.bytes = 64;
}

Lane::~Lane() {
  const auto destroy = [](cudaStream_t stream) {
    const bool is_own = stream != cudaStreamPerThread && stream != cudaStreamLegacy && stream != nullptr;
    if (is_own) check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  };
  std::for_each(streams_.begin(), streams_.end(), destroy);
  std::for_each(forks_.begin(), forks_.end(), destroy);
  std::for_each(direct_streams_.begin(), direct_streams_.end(), destroy);
  check(cudaEventDestroy(event_), "cudaEventDestroy");
}

void Lane::work() {
  const bool one_more = random_.one_in(2);
  if (settings_.default_stream) {
    streams_.push_back(one_more ? cudaStreamLegacy : nullptr);
  } else if (one_more) {
    streams_.push_back(cudaStreamPerThread);
  }
  if (kIsPerThread) streams_.insert(streams_.begin(), nullptr);
  stream_ = streams_[0];
  hot_ = random_.below(static_cast<int>(programs_.size()));
  for (run_ = 0; run_ < settings_.runs && !world_.stopped; ++run_) {
    const int count = static_cast<int>(programs_.size());
    if (random_.one_in(20)) hot_ = random_.below(count);
    run(random_.one_in(3) ? random_.below(count) : (hot_ + random_.below(3)) % count);
    if (!random_.one_in(settings_.runs_to_compare) && run_ + 1 < settings_.runs) continue;
    synchronize();
    const std::string difference = Memory::difference(cached_, direct_, direct_streams_[0]);
    if (!difference.empty()) fault(difference);
    if (!settings_.registers) continue;
    // Other lanes might get the memory, for another kind of place, and allocations break their global captures.
    const bool with_device = settings_.threads == 1 && random_.one_in(2);
    const bool has_moved = cached_.renew(with_device);
    direct_.renew(with_device);
    if (has_moved) cache_.clear();  // Constants have been addresses.
  }
  synchronize();
}

// Calls f with a local variable for Kind::kToLocal, at an address that depends on the run. It then becomes kResult.
template <class F>
[[gnu::noinline]] auto Lane::with_local(Memory& memory, cudaStream_t stream, const F& f) {
  void* const shift = __builtin_alloca(16 + static_cast<std::size_t>(run_ % 7) * 528);
  asm volatile("" : : "r"(shift) : "memory");
  int local[kWords];
  std::memcpy(local, memory.place(kResult), sizeof local);
  memory.local = local;
  const auto result = f();
  if (settings_.flavor.pageable) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  memory.local = memory.place(kResult);
  std::memcpy(memory.local, local, sizeof local);
  return result;
}

// One run of a program in both ways.
void Lane::run(int number) {
  if (random_.one_in(4)) go_to(random_stream());
  change_values();
  const bool bad = settings_.bad_values && random_.one_in(50);
  Values values = values_for(cached_), direct_values = values_for(direct_);
  if (bad) {
    Random same = random_;
    values = make_bad(values);
    random_ = same;
    direct_values = make_bad(direct_values);
  }
  if (settings_.flavor.refuses) library_ = {random_.one_in(2), random_.one_in(10)};
  operate(number, values);
  if (settings_.synchronizes && random_.one_in(2)) check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  if (settings_.spins && random_.one_in(16)) {
    check(launch(stream_, nullptr, spin, 1, 1, 0, 50 + random_.below(300)), "a launch of spin");
  }

  ++tally_.runs;
  if (kIsPerThread && stream_ == nullptr) ++tally_.per_thread;
  for (const Op& op : program(number).ops) ++tally_.kinds[static_cast<std::size_t>(op.kind)];
  doing_ = absl::StrCat("lane ", number_, " run ", run_, " program ", number);
  const absl::Status status =
      with_local(cached_, stream_, [&] { return call_cache(Way::kRun, number, stream_, values); });
  expect_left_alone("a run");
  if (status.ok() && must_be_direct(number) && outcome_ != Outcome::kEager) {
    fault("a graph has work that must be direct");
  }
  const cudaError_t direct = with_local(direct_, direct_streams_[0], [&] {
    try {
      return enqueue_directly(number, direct_streams_[0], direct_values);
    } catch (const cudaError_t error) {
      return error;
    }
  });
  (void)cudaGetLastError();
  if (status.ok() && direct == cudaSuccess) return;
  if (status.ok()) return fault(absl::StrCat("the run is ok, and directly it fails: ", cudaGetErrorName(direct)));
  synchronize();  // ends the process if the error is sticky
  if (direct == cudaSuccess) return fault("fails, and directly it does not: " + status.ToString());
  ++tally_.alike;
  direct_.assign(cached_, direct_streams_[0]);  // how much of the work was enqueued before the error is unspecified
}

bool Lane::must_be_direct(int number) const {
  const std::vector<Op>& ops = program(number).ops;
  return program(number).must_be_direct() || std::any_of(ops.begin(), ops.end(), [&](const Op& op) {
           const bool nests = op.kind == Kind::kNested || op.kind == Kind::kNestedWithValues;
           const int inner = nests ? nested_program(op) : -1;
           return inner >= 0 && program(inner).must_be_direct();
         });
}

cudaStream_t Lane::random_stream() {
  return streams_[static_cast<std::size_t>(random_.below(static_cast<int>(streams_.size())))];
}

// Continues on another stream, after the work enqueued so far.
void Lane::go_to(cudaStream_t stream) {
  if (stream == stream_) return;
  check(cudaEventRecord(event_, stream_), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  stream_ = stream;
}

// Sometimes calls one of the cache's other functions.
void Lane::operate(int number, const Values& values) {
  const int any = random_.below(static_cast<int>(programs_.size()));
  switch (random_.below(60)) {
    case 0:
      cache_.erase(key_of(any));
      break;
    case 1:
      if (random_.one_in(8)) cache_.clear();
      break;
    case 2:
      if (random_.one_in(4)) cache_.pin(key_of(number));
      break;
    case 3:
      for (int i = 0; i < static_cast<int>(programs_.size()); ++i) cache_.unpin(key_of(i));
      break;
    case 4:
      // On a stream that is not ordered with the run's. An error that breaks a capture is returned here, while a run
      // would go on directly.
      (void)call_cache(Way::kWarm, number, random_stream(), values);
      expect_left_alone("warm()");
      break;
    case 5:
      for (const EntryInfo& entry : cache_.entries()) {
        if (entry.live && !entry.recorded) fault("an entry is live and not recorded");
        const bool is_refused = entry.error.find("pageable host memory") != std::string::npos;
        if (is_refused && !settings_.flavor.pageable) fault("an entry of no pageable memory is refused");
      }
      break;
    default:
      break;
  }
}

void Lane::change_values() {
  const bool tiny = settings_.flavor.tiny;
  Values& v = draw_.values;
  draw_.out = kTargets + random_.below(kSlotKernelPlaces);
  draw_.in = kSources + random_.below(kSlotKernelPlaces);
  if (random_.one_in(2)) draw_.to = kTargets + random_.below(kSlotPlaces);
  if (random_.one_in(2)) draw_.from = kSources + random_.below(kSlotPlaces);
  const auto one = [this] { return static_cast<unsigned>(1 + random_.below(5)); };
  if (random_.one_in(3)) v.a = tiny ? random_.below(2) : static_cast<int>(random_.next());
  if (random_.one_in(4)) v.b = static_cast<unsigned char>(tiny ? random_.below(2) : random_.below(256));
  if (random_.one_in(4)) v.grid = dim3(one(), (one() + 1) / 2, (one() + 1) / 3 + 1);
  if (random_.one_in(4)) v.pairs = dim3(2 * one(), (one() + 1) / 2);
  if (random_.one_in(6)) v.block = 16u << random_.below(3);
  if (random_.one_in(6)) v.shared_bytes = 256 * static_cast<std::size_t>(random_.below(8));
  if (random_.one_in(4)) v.bytes = static_cast<std::size_t>(random_.below(kWords * static_cast<int>(sizeof(int)) + 1));
  if (random_.one_in(4)) v.real = static_cast<float>(random_.below(64)) / 4;
  if (random_.one_in(4)) v.wide = tiny ? random_.below(2) : static_cast<long long>(random_.next());
  if (random_.one_in(4)) {
    v.small.a = static_cast<char>(random_.below(100));
    v.small.b = static_cast<int>(random_.next());
    v.small.c = static_cast<long long>(random_.next());
  }
  if (random_.one_in(6)) {
    for (int& word : v.big.v) word = static_cast<int>(random_.next());
  }
  if (random_.one_in(6)) v.aligned.v[random_.below(16)] = static_cast<int>(random_.next());
  change_structures();
}

// Rarely, because each change patches or copies all bytes of all structures. Often it is one byte.
void Lane::change_structures() {
  if (!random_.one_in(8)) return;
  Values& v = draw_.values;
  const auto change = [this](auto& structure) {
    auto& bytes = structure.v;
    if (!random_.one_in(4)) return;
    if (settings_.flavor.tiny) {
      structure = structure_of<std::decay_t<decltype(structure)>>(random_.below(2), random_.below(2));
    } else if (random_.one_in(2)) {
      bytes[random_.below(static_cast<int>(sizeof bytes))] = static_cast<unsigned char>(random_.next());
    } else {
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random_.next());
    }
  };
#define GRAPHCACHE_TEST_CHANGE(name, size, alignment, before, other) change(v.name);
  GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_CHANGE)
#undef GRAPHCACHE_TEST_CHANGE
}

Values Lane::values_for(const Memory& memory) const {
  Values values = draw_.values;
  values.out = memory.place(draw_.out);
  values.in = memory.place(draw_.in);
  values.to = memory.place(draw_.to);
  values.from = memory.place(draw_.from);
  values.base = memory.place(0);
  return values;
}

// Values that no launch accepts.
Values Lane::make_bad(const Values& good) {
  Values values = good;
  switch (random_.below(4)) {
    case 0:
      values.grid = dim3(0);
      break;
    case 1:
      values.grid = dim3(1, 1u << 20);
      break;
    case 2:
      values.block = 100'000;
      break;
    default:
      values.shared_bytes = std::size_t{64} << 20;
  }
  return values;
}

// ---- The two ways ----

// Exceptions of Kind::kNotUnderCapture pass through a nested run, and are the error of another call.
absl::Status Lane::call_cache(Way way, int number, cudaStream_t stream, const Values& values) try {
  call_stream_ = stream;
  const auto make = [&](const auto& params, auto&& fn) -> absl::Status {
    if (way == Way::kWarm) return cache_.warm(key_of(number), stream, params, fn);
    const auto run = [&]() -> absl::StatusOr<Outcome> {
      if (!settings_.steps || number % 2 == 0) return cache_.run(key_of(number), stream, params, fn);
      ++tally_.steps;
      using StepOf = Step<std::decay_t<decltype(fn)>>;
      std::any& step = steps_[static_cast<std::size_t>(number)];
      if (!step.has_value()) step = cache_.prepare(key_of(number), fn);
      return std::any_cast<StepOf&>(step).run(stream, params);
    };
    const absl::StatusOr<Outcome> outcome = run();
    if (outcome.ok()) {
      outcome_ = *outcome;
      ++tally_.outcomes[static_cast<std::size_t>(outcome_)];
    }
    return outcome.status();
  };
  const absl::Status status =
      program(number).takes_values
          ? make(params_of(values),
                 [this, number](Recorder& recorder, auto... slot) -> cudaError_t {
                   const Slots slots{slot...};
                   return enqueue_recorded(recorder, number, &slots);
                 })
          : make(params(), [this, number](Recorder& recorder) { return enqueue_recorded(recorder, number, nullptr); });
  if (!status.ok()) ++tally_.failed;
  return status;
} catch (const cudaError_t error) {
  ++tally_.failed;
  if (way == Way::kNested) throw;
  return detail::fn_failure(error);
}

cudaError_t Lane::enqueue_recorded(Recorder& recorder, int number, const Slots* slots) {
  // In a per-thread lane, work on stream 0 is part of a run on stream 0.
  const bool is_on_zero = kIsPerThread && call_stream_ == nullptr;
  const Streams streams = {is_on_zero ? nullptr : recorder.stream(), forks_[0], forks_[1], forks_[2]};
  const auto nested = [&](const Op& op, cudaStream_t stream) {
    const int inner = nested_program(op);
    if (inner < 0) return cudaSuccess;
    return error_of(call_cache(Way::kNested, inner, stream, values_for(cached_)));
  };
  Enqueuer enqueuer(Recorded(recorder, slots), program(number), cached_, streams, event_, library_, nested);
  return enqueuer.enqueue(cached_.host_arguments(number));
}

cudaError_t Lane::enqueue_directly(int number, cudaStream_t stream, const Values& values) {
  Streams streams = direct_streams_;
  streams[0] = stream;
  const auto nested = [&](const Op& op, cudaStream_t on) {
    const int inner = nested_program(op);
    return inner < 0 ? cudaSuccess : enqueue_directly(inner, on, values_for(direct_));
  };
  Enqueuer enqueuer(Direct(program(number).takes_values ? &values : nullptr), program(number), direct_, streams, event_,
                    library_, nested);
  return enqueuer.enqueue(direct_.host_arguments(number));
}

// A program that nests no other and takes values only if the operation says so; or -1.
int Lane::nested_program(const Op& op) const {
  const int count = static_cast<int>(programs_.size());
  for (int i = 0; i < count; ++i) {
    const int number = (op.a + i) % count;
    const bool takes_values = op.kind == Kind::kNestedWithValues;
    if (!program(number).nests && program(number).takes_values == takes_values) return number;
  }
  return -1;
}

// ---- Checks ----

void Lane::synchronize() {
  for (const cudaStream_t stream : streams_) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (const cudaStream_t stream : forks_) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (const cudaStream_t stream : direct_streams_) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void Lane::expect_left_alone(const char* when) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    fault(absl::StrCat(when, " has left an error behind: ", cudaGetErrorName(error)));
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) fault(absl::StrCat(when, " has left the stream capturing"));
}

void Lane::fault(const std::string& what) { world_.fault(doing_ + ": " + what); }

Key Lane::key_of(int number) const {
  return program(number).shared ? key("shared", number) : key("own", number_, number);
}

}  // namespace GRAPHCACHE_TEST_UNIT

std::unique_ptr<AnyLane> GRAPHCACHE_TEST_MAKE_LANE(World& world, Cache& cache, int number) {
  return std::make_unique<Lane>(world, cache, number);
}

}  // namespace graphcache::test::differential
