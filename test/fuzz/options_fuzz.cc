// Caches with random options and random sequences of their calls, where fn breaks captures, CUDA calls fail and
// exceptions are thrown. Each run has an outcome or a typed error, and its work is done exactly once with its own
// values (a copy on the host does the same steps). The stream and the thread are unchanged, and the cache leaves
// nothing alive.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <array>
#include <climits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/errors.h"
#include "forced_ways.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "input.h"
#include "kernels.h"
#include "structure/checks.h"

namespace graphcache::test {
namespace {

constexpr int kInts = 8;
constexpr int kMaxCalls = 100;

Options read_options(Input& in, cudaStream_t stream) {
  static constexpr int kCounts[] = {64, 1, 2, 3, 512, 0, -1, INT_MIN, INT_MAX};
  static constexpr std::size_t kBytes[] = {SIZE_MAX, 1 << 20, 300 << 10, 100 << 10, 4096, 1, 0};
  static constexpr int kDevices[] = {Options::kCurrentDevice, 0, 0, 0, 1, 2, -2, INT_MIN, INT_MAX};
  const cudaStream_t streams[] = {cudaStreamPerThread, stream, stream, nullptr, cudaStreamLegacy};
  Options options;
  options.max_executables = in.pick(kCounts);
  options.max_templates = in.pick(kCounts);
  options.max_device_bytes = in.pick(kBytes);
  options.device = in.pick(kDevices);
  options.stream = in.pick(streams);
  test::force(&options, static_cast<test::Sharing>(in.below(4)));
  if (in.chance(16)) options.share = static_cast<Share>(in.below(4));
  options.capture_mode = static_cast<cudaStreamCaptureMode>(in.below(in.chance(8) ? 4 : 3));
  options.instantiate_flags = in.chance(64) ? in.byte() : 0;
  if (in.chance(64)) options.capture_after = in.pick(kCounts);
  return options;
}

// The work of a run: some steps on the data, selected by the key, and calls that a capture does not allow.
struct Work {
  int steps;
  bool otherwise;
  int grid;
  int value;  // a slot
  enum Trouble { kNone, kError, kStatus, kThrow, kAllocate, kSynchronize, kNested, kTroubles };
  Trouble trouble;
};

int wrapped(int a, int b, int c) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b) + static_cast<unsigned>(c));
}

void do_on_host(const Work& work, std::array<int, kInts>& data) {
  for (int step = 0; step < work.steps; ++step) {
    for (int i = 0; i < std::min(kInts, 4 * work.grid); ++i) {
      data[i] = work.otherwise ? wrapped(data[i] ^ step, 5, wrapped(-1, work.value, 0))
                               : wrapped(step, data[i], wrapped(1, work.value, i));
    }
  }
}

class Caller {
 public:
  explicit Caller(Input& input) : in_(input) {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&data_), sizeof expected_);
    cudaMemset(data_, 0, sizeof expected_);
    at_start_ = hostrt::ledger();
  }

  void run() {
    const Options options = read_options(in_, stream_);
    {
      Cache cache(options);
      for (int i = 0; i < kMaxCalls && !in_.done(); ++i) {
        call(cache);
        check_surroundings();
        const std::string fault = StructureChecker::find_fault(cache);
        FUZZ_CHECK(fault.empty(), fault);
      }
      check_counters(cache);
    }
    hostrt::clear_failures();
    if (calls_fail_) {  // Another cache destroys what an earlier failed call has left.
      Cache next;
      (void)next.run(graphcache::key("next"), stream_, [](cudaStream_t) { return cudaSuccess; });
      (void)next.erase(graphcache::key("next"));
    }
    // After a fatal error, handles are dropped, because their objects belong to the dead context. The destructor
    // reports nothing.
    if (!fatal_ && !may_be_fatal_) FUZZ_CHECK(hostrt::ledger() == at_start_, "a cache left something behind");
    FUZZ_CHECK(hostrt::misuses() == 0, hostrt::last_misuse());
  }

 private:
  void call(Cache& cache) {
    const Key key = graphcache::key("key", in_.below(8));
    switch (in_.below(16)) {
      case 0:
        return void(cache.pin(key));
      case 1:
        return void(cache.unpin(key));
      case 2:
        return void(cache.erase(key));
      case 3:
        return in_.chance(32) ? cache.clear() : void(cache.contains(key));
      case 4:
        for (const EntryInfo& entry : cache.entries()) FUZZ_CHECK(!to_string(entry).empty(), entry.key.to_string());
        return;
      case 5:
        return arm_failure();
      case 6:
        return hostrt::clear_failures();
      case 7:
        return warm(cache);
      default:
        return run_once(cache);
    }
  }

  // One work for each key, with changing values: everything that decides what is enqueued belongs in the key.
  Work read_work(int key) {
    const int value = in_.take<int>();
    const std::uint8_t trouble = in_.byte();
    return {key % 3 + 1, key >= 6, key % 2 + 1, value,
            trouble < Work::kTroubles ? static_cast<Work::Trouble>(trouble) : Work::kNone};
  }

  absl::Status enqueue(Cache& cache, const Work& work, Recorder& rec, Slot<int> value) {
    void* memory = nullptr;
    switch (work.trouble) {
      case Work::kError:
        return absl::CancelledError("fn gives up");
      case Work::kStatus:
        return absl::OkStatus();  // nothing was enqueued, which is the work of this key's first run
      case Work::kThrow:
        throw std::runtime_error("fn throws");
      case Work::kAllocate:
        cudaMalloc(&memory, 16);
        cudaFree(memory);
        cudaGetLastError();
        break;
      case Work::kSynchronize:
        cudaStreamSynchronize(rec.stream());
        cudaGetLastError();
        break;
      case Work::kNested: {
        const absl::StatusOr<Outcome> inner =
            cache.run(graphcache::key("inner"), rec.stream(), [](Recorder&) { return cudaSuccess; });
        if (!inner.ok()) return inner.status();
        break;
      }
      case Work::kNone:
      case Work::kTroubles:
        break;
    }
    for (int step = 0; step < work.steps; ++step) {
      rec.launch(work.otherwise ? blend_otherwise : blend, {dim3(static_cast<unsigned>(work.grid)), dim3(4)}, data_,
                 kInts, step, value);
    }
    return absl::OkStatus();
  }

  template <class Call>
  void guarded(Call&& call) {
    try {
      call();
    } catch (const std::runtime_error&) {
    }
  }

  void run_once(Cache& cache) {
    const int key = static_cast<int>(in_.below(8));
    Work work = read_work(key);
    if (work.trouble == Work::kStatus) work.trouble = Work::kNone;
    const bool own_stream = in_.chance(200);
    absl::StatusOr<Outcome> outcome = absl::UnknownError("fn threw");
    guarded([&] {
      const auto fn = [&](Recorder& rec, Slot<int> value) { return enqueue(cache, work, rec, value); };
      const Key whole = graphcache::key("work", key);
      outcome =
          own_stream ? cache.run(whole, stream_, params(work.value), fn) : cache.run(whole, params(work.value), fn);
    });
    if (outcome.ok()) {
      FUZZ_CHECK(*outcome != Outcome::kInlined, to_string(*outcome));
      do_on_host(work, expected_);
    } else {
      FUZZ_CHECK(!outcome.status().message().empty(), "an error without words");
      if (is_fatal(cuda_error(outcome.status()))) fatal_ = true;
    }
    check_data(outcome.ok());
  }

  void warm(Cache& cache) {
    const int key = static_cast<int>(in_.below(8));
    Work work = read_work(key);
    if (work.trouble == Work::kStatus) work.trouble = Work::kNone;
    guarded([&] {
      const absl::Status status =
          cache.warm(graphcache::key("work", key), stream_, params(work.value),
                     [&](Recorder& rec, Slot<int> value) { return enqueue(cache, work, rec, value); });
      if (is_fatal(cuda_error(status))) fatal_ = true;
    });
    check_data(true);  // it runs nothing
  }

  // The armed failures are for the cache's calls, so reading the data must not use them up.
  void check_data(bool known) {
    std::array<int, kInts> found;
    // Hostrt's device memory is host memory.
    for (int i = 0; i < kInts; ++i) found[static_cast<std::size_t>(i)] = data_[i];
    if (known) FUZZ_CHECK(found == expected_, "the device holds something else than the same steps on the host");
    expected_ = found;
  }

  void arm_failure() {
    static constexpr const char* kFunctions[] = {"cudaGraphLaunch",        "cudaGraphInstantiate",
                                                 "cudaGraphExecUpdate",    "cudaGraphExecKernelNodeSetParams",
                                                 "cudaStreamBeginCapture", "cudaStreamEndCapture",
                                                 "cudaStreamIsCapturing",  "cudaStreamGetCaptureInfo",
                                                 "cudaGraphGetNodes",      "cudaGraphKernelNodeGetParams",
                                                 "cudaGraphUpload",        "cudaLaunchKernel",
                                                 "cudaGetDevice",          "cudaStreamGetDevice",
                                                 "cudaGraphNodeGetType"};
    static constexpr cudaError_t kErrors[] = {cudaErrorMemoryAllocation,
                                              cudaErrorInvalidValue,
                                              cudaErrorGraphExecUpdateFailure,
                                              cudaErrorStreamCaptureInvalidated,
                                              cudaErrorStreamCaptureUnsupported,
                                              cudaErrorNotSupported,
                                              cudaErrorUnknown,
                                              cudaErrorIllegalAddress};
    const char* function = in_.pick(kFunctions);
    const int nth = static_cast<int>(in_.below(8));
    const cudaError_t error = in_.pick(kErrors);
    calls_fail_ = true;
    may_be_fatal_ |= is_fatal(error);
    hostrt::fail_call(function, nth, error, in_.chance(16) ? -1 : 1 + static_cast<int>(in_.below(3)));
  }

  // Law 4.
  void check_surroundings() {
    hostrt::Ledger now = hostrt::ledger();
    FUZZ_CHECK(now.captures == 0, "a capture goes on");
    // The cache has one stream for warm(), one to find out what is complete, and one for captures in the place of the
    // legacy stream.
    FUZZ_CHECK(now.streams <= at_start_.streams + 3,
               std::to_string(now.streams - at_start_.streams) + " streams were made");
    // An executable that was not launched may have an event, and so may one that waits for destruction.
    FUZZ_CHECK(now.events <= at_start_.events + 2 * now.executables, "events were made");
    const cudaError_t left = cudaGetLastError();
    FUZZ_CHECK(left == cudaSuccess, cudaGetErrorName(left));
  }

  void check_counters(const Cache& cache) {
    const Stats stats = cache.stats();
    std::uint64_t outcomes = stats.failed;
    for (const std::uint64_t count : stats.outcomes) outcomes += count;
    FUZZ_CHECK(stats.runs() <= outcomes, to_string(stats));
    FUZZ_CHECK(stats.hit_rate() >= 0 && stats.hit_rate() <= 1, to_string(stats));
    std::uint64_t live = 0;
    std::uint64_t recorded = 0;
    for (const EntryInfo& entry : cache.entries()) {
      live += entry.live ? 1 : 0;
      recorded += entry.recorded ? 1 : 0;
    }
    if (fatal_) return;  // the entry of the run that found the error may still exist
    FUZZ_CHECK(stats.live_executables == live, to_string(stats));
    FUZZ_CHECK(stats.live_templates == recorded, to_string(stats));
    const Options& options = cache.options();
    FUZZ_CHECK(live <= static_cast<std::uint64_t>(std::max(options.max_executables, 0)), to_string(stats));
    FUZZ_CHECK(stats.estimated_device_bytes <= options.max_device_bytes, to_string(stats));
  }

  Input& in_;
  cudaStream_t stream_ = nullptr;
  int* data_ = nullptr;
  std::array<int, kInts> expected_{};
  hostrt::Ledger at_start_;
  bool fatal_ = false;
  bool calls_fail_ = false;    // whether some call was made to fail
  bool may_be_fatal_ = false;  // whether that error may be a fatal one
};

}  // namespace
}  // namespace graphcache::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace graphcache;  // NOLINT(google-build-using-namespace)
  hostrt::reset();
  hostrt::set_device_count(2);
  test::Input input(data, size);
  test::Caller(input).run();
  hostrt::reset();
  FUZZ_CHECK(hostrt::ledger() == hostrt::Ledger(), "after reset()");
  return 0;
}
