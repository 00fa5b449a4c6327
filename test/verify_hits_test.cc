// Verify mode names each mistake that makes a hit wrong, on either runtime. The suite verify_quiet shows that it names
// nothing else.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"
#include "verify_support.h"

namespace graphcache::test {
namespace {

std::string hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%#zx", reinterpret_cast<std::size_t>(pointer));
  return text;
}

class VerifyHitsTest : public StreamTest {
 protected:
  // A first run and a second one of the same key, which the caller takes for the same and which are not.
  using Run = std::function<absl::StatusOr<Outcome>(Cache& cache, int which)>;
  using Result = std::function<float()>;

  // What the second run leaves, without verify mode and with each reaction; and what the finding has to name.
  void expect_found(const Run& run, const Result& result, float wrong, float right,
                    const std::vector<std::string>& words) {
    expect_wrong_without(run, result, wrong);
    expect_reported(run, result, wrong, words);
    expect_forgotten(run, result, right, words);
    expect_refused(run, words);
  }
  void expect_wrong_without(const Run& run, const Result& result, float wrong) {
    Cache cache;
    run_first(cache, run);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(result(), wrong);
    EXPECT_EQ(cache.stats().verified, 0u);
  }
  void expect_reported(const Run& run, const Result& result, float wrong, const std::vector<std::string>& words) {
    Cache cache(verifying());
    run_first(cache, run);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(result(), wrong);
    expect_one_finding(cache, words);
  }
  void expect_forgotten(const Run& run, const Result& result, float right, const std::vector<std::string>& words) {
    Cache cache(verifying(OnStale::kForget));
    run_first(cache, run);
    EXPECT_RUN(kInstantiated, run(cache, 1));
    EXPECT_EQ(result(), right);
    expect_one_finding(cache, words);
    EXPECT_EQ(cache.stats().forgotten, 1u);
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(cache.stats().stale, 1u);
  }
  void expect_refused(const Run& run, const std::vector<std::string>& words) {
    Cache cache(verifying(OnStale::kReturnError));
    run_first(cache, run);
    const std::vector<float> before = data.read();
    const absl::StatusOr<Outcome> outcome = run(cache, 1);
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_TRUE(holds_all(outcome.status().ToString(), words));
    EXPECT_EQ(data.read(), before);
    expect_one_finding(cache, words);
    EXPECT_EQ(cache.stats().failed, 1u);
    EXPECT_RUN(kReplayed, run(cache, 0));  // The entry is whole.
  }

  void run_first(Cache& cache, const Run& run) {
    data.write(std::vector<float>(kSize, -1));
    other.write(std::vector<float>(kSize, -1));
    EXPECT_RUN(kInstantiated, run(cache, 0));
  }
  static void expect_one_finding(const Cache& cache, const std::vector<std::string>& words) {
    EXPECT_EQ(cache.stats().stale, 1u);
    EXPECT_TRUE(holds_all(findings(cache), words));
    EXPECT_TRUE(holds_all(to_string(cache.entries().front()), {"stale: "}));
  }
  Result first_of(const DeviceBuffer<float>& buffer) {
    return [&buffer] { return buffer.first(); };
  }

  DeviceBuffer<float> data{kSize}, other{kSize};
};

// ---- Mistakes -------------------------------------------------------------------------------------------------------

TEST_F(VerifyHitsTest, ValueCapturedByReference) {
  float value = 0;
  const auto run = [&](Cache& cache, int which) {
    value = which == 0 ? 2.0f : 3.0f;
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, value); });
  };
  expect_found(run, first_of(data), 2, 3,
               {"node 0 (kernel graphcache::test::fill", "argument 2 was 0x40000000 (", "as a float 2)",
                "and is 0x40400000 (", "as a float 3)"});
}

TEST_F(VerifyHitsTest, PointerThatMoved) {
  const auto run = [&](Cache& cache, int which) {
    float* const to = which == 0 ? other.get() : data.get();
    return cache.run(key("k"), stream,
                     [to](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, kSize, 7.0f); });
  };
  expect_found(run, first_of(data), -1, 7,
               {"node 0 (kernel graphcache::test::fill", "argument 0 was " + hex(other.get()) + " (memory of device 0)",
                "and is " + hex(data.get()) + " (memory of device 0)"});
}

// Nothing is launched, since the kernel would write there.
TEST_F(VerifyHitsTest, PointerToFreedMemory) {
  Cache cache(verifying(OnStale::kReturnError));
  float* memory = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), kSize * sizeof(float)));
  const auto run = [&](float* to) {
    return cache.run(key("k"), stream,
                     [to](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, kSize, 7.0f); });
  };
  EXPECT_RUN(kInstantiated, run(memory));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaFree(memory));
  EXPECT_FAILURE(kFailedPrecondition, run(data.get()));
  expect_one_finding(cache, {"argument 0 was " + hex(memory) + " (pageable host memory or freed memory)"});
}

// What a copy of it would read is anybody's guess, so nothing is launched here either.
TEST_F(VerifyHitsTest, PointerToTheStack) {
  Cache cache(verifying(OnStale::kReturnError));
  const auto call = [&](const float& local, bool warm) {
    const auto fn = [&](cudaStream_t on) {
      return cudaMemcpyAsync(data.get(), &local, sizeof local, cudaMemcpyHostToDevice, on);
    };
    if (warm) return cache.warm(key("k"), stream, fn);
    return cache.run(key("k"), stream, fn).status();
  };
  const float locals[2] = {1, 2};
  EXPECT_TRUE(call(locals[0], true).ok());
  EXPECT_FAILURE(kFailedPrecondition, call(locals[1], false));
  expect_one_finding(cache, {"node 0 (copy): the source was " + hex(&locals[0]) + " (on this thread's stack)",
                             "and is " + hex(&locals[1]) + " (on this thread's stack)"});
}

TEST_F(VerifyHitsTest, BranchThatIsNotInTheKey) {
  const auto run = [&](Cache& cache, int which) {
    const bool twice = which == 0;
    return cache.run(key("k"), stream, [&, twice](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      if (twice) {
        CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
      }
    });
  };
  expect_found(
      run, first_of(data), 3, 2,
      {"the number of nodes was 2 when", "and is 1 now", "node 1 (kernel graphcache::test::add", ") is missing now"});
}

TEST_F(VerifyHitsTest, BranchThatAddsWork) {
  const auto run = [&](Cache& cache, int which) {
    return cache.run(key("k"), stream, [&, which](cudaStream_t on) {
      if (which == 1) {
        CUDA_OK(cudaMemsetAsync(other.get(), 0, sizeof(float), on));
      }
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
    });
  };
  expect_found(
      run, first_of(other), -1, 0,
      {"the number of nodes was 1 when", "and is 2 now", "node 0 (kernel graphcache::test::fill", "is a set now"});
}

// The site of a run is the type of `fn`, which is one for both.
struct Enqueuer {
  cudaError_t operator()(cudaStream_t on) const { return enqueue(on, data); }
  cudaError_t (*enqueue)(cudaStream_t on, float* data);
  float* data;
};

TEST_F(VerifyHitsTest, FunctorThatHoldsAFunctionPointer) {
  const auto run = [&](Cache& cache, int which) {
    const auto fill_two = [](cudaStream_t on, float* to) { return launch(fill, kGrid, kBlock, on, to, kSize, 2.0f); };
    const auto add_two = [](cudaStream_t on, float* to) { return launch(add, kGrid, kBlock, on, to, kSize, 2.0f); };
    return cache.run(key("k"), stream, Enqueuer{which == 0 ? +fill_two : +add_two, data.get()});
  };
  expect_wrong_without(run, first_of(data), 2);
  expect_reported(run, first_of(data), 2,
                  {"node 0 (kernel graphcache::test::fill", "the kernel was graphcache::test::fill",
                   "and is graphcache::test::add"});
  expect_forgotten(run, first_of(data), 4, {"and is graphcache::test::add"});
  expect_refused(run, {"and is graphcache::test::add"});
}

// Two places of the program that call one helper are one place to the cache.
absl::StatusOr<Outcome> run_helper(Cache& cache, cudaStream_t stream, float* to, int constant, float value) {
  return cache.run(key("helper"), stream,
                   [=](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, constant, value); });
}

TEST_F(VerifyHitsTest, LambdaOfAHelperWithOtherCaptures) {
  const auto run = [&](Cache& cache, int which) {
    return which == 0 ? run_helper(cache, stream, data.get(), kSize, 2) : run_helper(cache, stream, data.get(), 50, 2);
  };
  const auto last = [&] { return data.read()[kSize - 1]; };
  data.write(std::vector<float>(kSize, -1));
  {
    Cache cache;
    EXPECT_RUN(kInstantiated, run(cache, 0));
    data.write(std::vector<float>(kSize, -1));
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(last(), 2);
  }
  Cache cache(verifying(OnStale::kForget));
  EXPECT_RUN(kInstantiated, run(cache, 0));
  data.write(std::vector<float>(kSize, -1));
  EXPECT_RUN(kInstantiated, run(cache, 1));
  EXPECT_EQ(last(), -1);
  expect_one_finding(cache, {"node 0 (kernel graphcache::test::fill", "argument 1 was 0x64 (100,", "and is 0x32 (50,"});
}

// The first run had it on the run's stream. Later it goes to another, where the recording does not see it.
TEST_F(VerifyHitsTest, LaunchThatWentElsewhere) {
  Stream elsewhere;
  cudaStream_t where = nullptr;
  const auto run = [&](Cache& cache, int which) {
    where = which == 0 ? stream : elsewhere;
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      CUDA_OK(launch(add, kGrid, kBlock, where, on == where ? data.get() : other.get(), kSize, 1.0f));
    });
  };
  expect_found(
      run, first_of(data), 3, 2,
      {"the number of nodes was 2 when", "and is 1 now", "node 1 (kernel graphcache::test::add", ") is missing now"});
}

TEST_F(VerifyHitsTest, HostFunctionWhoseDataHasMoved) {
  std::array<std::unique_ptr<float>, 2> counts;
  const auto run = [&](Cache& cache, int which) {
    if (which == 0) counts = {std::make_unique<float>(0.0f), std::make_unique<float>(0.0f)};
    float* const count = counts[which].get();
    return cache.run(key("k"), stream, [count](cudaStream_t on) {
      return cudaLaunchHostFunc(
          on, [](void* at) { *static_cast<float*>(at) += 1; }, count);
    });
  };
  const auto second = [&] {
    CUDA_OK(cudaDeviceSynchronize());
    return *counts[1];
  };
  const std::vector<std::string> words = {"node 0 (host function): its data was 0x", "and is 0x"};
  expect_wrong_without(run, second, 0);
  expect_reported(run, second, 0, words);
  expect_forgotten(run, second, 1, words);
}

TEST_F(VerifyHitsTest, GridThatFollowsAVariable) {
  unsigned blocks = 0;
  const auto run = [&](Cache& cache, int which) {
    blocks = which == 0 ? 1 : 2;
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(fill, dim3(blocks), kBlock, on, data.get(), kSize, 2.0f); });
  };
  expect_found(run, [&] { return data.read()[kSize - 1]; }, -1, 2,
               {"node 0 (kernel graphcache::test::fill", "the grid was (1, 1, 1) when", "and is (2, 1, 1) now"});
}

TEST_F(VerifyHitsTest, CopiesAndSetsOfOtherMemoryAndSizes) {
  const auto copies = [&](std::size_t elements) {
    return [&, elements](Cache& cache, int which) {
      return cache.run(key("k"), stream, [&, elements, which](cudaStream_t on) {
        CUDA_OK(cudaMemsetAsync(data.get(), 0, (which == 0 ? 1 : elements) * sizeof(float), on));
      });
    };
  };
  const auto last = [&] { return data.read()[kSize - 1]; };
  expect_found(copies(kSize), last, -1, 0, {"node 0 (set): the width was 4 when", "and is 400 now"});

  const auto copy = [&](Cache& cache, int which) {
    const float* const from = which == 0 ? data.get() + 1 : other.get();
    return cache.run(key("k"), stream, [&, from](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, other.get(), kSize, 5.0f));
      return cudaMemcpyAsync(data.get(), from, sizeof(float), cudaMemcpyDeviceToDevice, on);
    });
  };
  expect_found(copy, first_of(data), -1, 5,
               {"node 1 (copy): the source was " + hex(data.get() + 1), "and is " + hex(other.get())});
}

TEST_F(VerifyHitsTest, NodesOfOtherKinds) {
  Event event;
  int ignored = 0;
  const std::vector<std::pair<const char*, std::function<cudaError_t(cudaStream_t)>>> kinds = {
      {"kernel ", [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, 1.0f); }},
      {"copy",
       [&](cudaStream_t on) { return cudaMemcpyAsync(data.get(), other.get(), 4, cudaMemcpyDeviceToDevice, on); }},
      {"set", [&](cudaStream_t on) { return cudaMemsetAsync(data.get(), 0, 4, on); }},
      {"host function",
       [&](cudaStream_t on) {
         return cudaLaunchHostFunc(
             on, [](void*) {}, &ignored);
       }},
      {"event", [&](cudaStream_t on) { return cudaEventRecordWithFlags(event, on, cudaEventRecordExternal); }},
      {"event wait", [&](cudaStream_t on) { return cudaStreamWaitEvent(on, event, cudaEventWaitExternal); }},
      {"allocation",
       [&](cudaStream_t on) {
         void* memory = nullptr;
         const cudaError_t error = cudaMallocAsync(&memory, 64, on);
         return error == cudaSuccess ? cudaFreeAsync(memory, on) : error;
       }},
  };
  CUDA_OK(cudaEventRecord(event, stream));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (const std::size_t j : {(i + 1) % kinds.size(), (i + 3) % kinds.size()}) {
      SCOPED_TRACE(std::string(kinds[i].first) + ", then " + kinds[j].first);
      Cache cache(verifying(OnStale::kReturnError));
      std::size_t which = i;
      const auto run = [&] {
        return cache.run(key("k"), stream, [&](cudaStream_t on) { return kinds[which].second(on); });
      };
      EXPECT_RUN(kInstantiated, run());
      EXPECT_RUN(kReplayed, run());
      which = j;
      EXPECT_FAILURE(kFailedPrecondition, run());
      expect_one_finding(cache, {std::string("node 0 (") + kinds[i].first, std::string("is a ") + kinds[j].first});
    }
  }
}

// Each is a place where the first recording has one thing and the next another. The kernels touch no memory.
TEST_F(VerifyHitsTest, EachPartOfANodeIsNamed) {
  float *pinned = nullptr, *managed = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), 64));
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 64, cudaMemAttachGlobal));
  const auto at = [](float* to) { return [to](Recorder& rec) { rec.launch(fill, {1, 1}, to, 0, 1.0f); }; };
  const auto nothing = [](unsigned block, std::size_t shared) {
    return [=](Recorder& rec) { rec.launch(do_nothing, {1, block, shared}); };
  };
  const auto set = [&](int value, std::size_t bytes) {
    return [=, to = data.get()](Recorder& rec) { rec.memset(to, value, bytes); };
  };
  const auto allocation = [](std::size_t bytes) {
    return [=](Recorder& rec) {
      void* memory = nullptr;
      CUDA_OK(cudaMallocAsync(&memory, bytes, rec.stream()));
      CUDA_OK(cudaFreeAsync(memory, rec.stream()));
    };
  };
  struct Part {
    std::function<void(Recorder&)> first, then;
    std::vector<std::string> words;
  };
  const std::vector<Part> parts = {
      {at(data.get()), at(pinned), {"argument 0 was", "(memory of device 0)", "(pinned host memory)"}},
      {at(pinned), at(managed), {"argument 0 was", "(pinned host memory)", "(managed memory)"}},
      {at(managed), at(nullptr), {"argument 0 was", "(managed memory)", "and is 0"}},
      {at(nullptr), at(data.get()), {"argument 0 was 0", "(memory of device 0)"}},
      {nothing(32, 0), nothing(64, 0), {"the block was (32, 1, 1)", "and is (64, 1, 1)"}},
      {nothing(32, 16), nothing(32, 32), {"dynamic shared memory was 16", "and is 32"}},
      {set(1, 4), set(2, 4), {"node 0 (set): the value was 1", "and is 2"}},
      {set(1, 4), set(1, 8), {"node 0 (set): the ", "was 4"}},
      {allocation(64), allocation(4096), {"node 0 (allocation): the size was 64", "and is 4096"}},
  };
  for (const Part& part : parts) {
    Cache cache(verifying(OnStale::kReturnError));
    bool is_first = true;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](Recorder& rec) { (is_first ? part.first : part.then)(rec); });
    };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_RUN(kReplayed, run());
    is_first = false;
    EXPECT_FAILURE(kFailedPrecondition, run());
    expect_one_finding(cache, part.words);
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(managed));
}

// A finding needs two recordings that say the same.
TEST_F(VerifyHitsTest, ARecordingThatBreaksTheSecondTimeDecidesNothing) {
  for (const bool fails : {false, true}) {
    Cache cache(verifying(OnStale::kReturnError));
    int calls = 0;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](cudaStream_t on) {
        const cudaError_t error = launch(fill, kGrid, kBlock, on, data.get(), kSize, static_cast<float>(++calls));
        if (calls == 3 && fails) return cudaErrorInvalidValue;
        if (calls == 3) cudaStreamSynchronize(on);
        return error;
      });
    };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_RUN(kReplayed, run());
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(cache.stats().stale + cache.stats().verified, 0u);
  }
}

TEST_F(VerifyHitsTest, MemberOfAStructure) {
  DeviceBuffer<Mixed> to(1);
  Mixed value;
  std::memset(&value, 0, sizeof value);
  const auto run = [&](Cache& cache, int which) {
    value.real = which == 0 ? 1.0 : 2.0;
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(copy_struct, dim3(1), dim3(1), on, to.get(), value); });
  };
  expect_found(run, [&] { return static_cast<float>(to.read()[0].real); }, 1, 2,
               {"node 0 (kernel graphcache::test::copy_struct", "argument 1, bytes 8 to 15 of", "as a double 1)",
                "as a double 2)"});
}

TEST_F(VerifyHitsTest, OtherDependencies) {
  Stream side;
  Event fork, join;
  bool forks = false;
  const auto run = [&](Cache& cache, int which) {
    forks = which == 1;
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(launch(do_nothing, dim3(1), dim3(1), on));
      CUDA_OK(cudaEventRecord(fork, on));
      CUDA_OK(launch(do_nothing, dim3(1), dim3(1), on));
      if (!forks) {
        CUDA_OK(cudaEventRecord(fork, on));
      }
      CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
      CUDA_OK(launch(do_nothing, dim3(1), dim3(1), side));
      CUDA_OK(cudaEventRecord(join, side));
      CUDA_OK(cudaStreamWaitEvent(on, join, 0));
    });
  };
  expect_reported(run, first_of(data), -1, {"node 2 (kernel graphcache::test::do_nothing", "depends on other nodes"});
}

TEST_F(VerifyHitsTest, SlotsThatChangePlaces) {
  bool swap = false;
  const auto run = [&](Cache& cache, int which) {
    swap = which == 1;
    return cache.run(key("k"), stream, params(2.0f, 3.0f), [&](Recorder& rec, Slot<float> a, Slot<float> b) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, swap ? b : a);
    });
  };
  expect_found(run, first_of(data), 2, 3, {"argument 2 was a slot when", "and is another slot now"});
  const auto constant = [&](Cache& cache, int which) {
    swap = which == 1;
    return cache.run(key("k"), stream, params(2.0f), [&](Recorder& rec, Slot<float> a) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, swap ? Arg<float>(3.0f) : Arg<float>(a));
    });
  };
  expect_found(constant, first_of(data), 2, 3, {"argument 2 was a slot when", "and is a constant now"});
}

// ---- What the run does ----------------------------------------------------------------------------------------------

TEST_F(VerifyHitsTest, CallThatACaptureForbidsIsAFinding) {
  bool waits = false;
  const auto run = [&](Cache& cache) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      if (waits) (void)cudaStreamSynchronize(on);
    });
  };
  const auto expect = [&](OnStale on_stale, auto&& expect_outcome) {
    Cache cache(verifying(on_stale));
    waits = false;
    EXPECT_RUN(kInstantiated, run(cache));
    waits = true;
    expect_outcome(run(cache));
    expect_one_finding(cache, {"could not be recorded again", "a capture forbids", "cudaErrorStreamCapture"});
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(cache.stats().verified, 0u);
  };
  expect(OnStale::kReport, [](const auto& outcome) { EXPECT_RUN(kReplayed, outcome); });
  expect(OnStale::kForget, [](const auto& outcome) { EXPECT_RUN(kEager, outcome); });
  expect(OnStale::kReturnError, [](const auto& outcome) { EXPECT_FAILURE(kFailedPrecondition, outcome); });
}

// Where no error of `fn` is left, another thread may have broken it.
TEST_F(VerifyHitsTest, ExceptionOfABrokenRecordingIsAFindingIfItsErrorIsThere) {
  for (const bool clears : {false, true}) {
    Cache cache(verifying(OnStale::kReturnError));
    bool waits = false;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](cudaStream_t on) {
        CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
        if (!waits || cudaStreamSynchronize(on) == cudaSuccess) return;
        if (clears) cudaGetLastError();
        throw std::runtime_error("could not wait");
      });
    };
    EXPECT_RUN(kInstantiated, run());
    waits = true;
    if (clears) {
      EXPECT_RUN(kReplayed, run());
    } else {
      EXPECT_FAILURE(kFailedPrecondition, run());
    }
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(cache.stats().stale, clears ? 0u : 1u);
    EXPECT_EQ(cache.stats().verified, 0u);
  }
}

TEST_F(VerifyHitsTest, ErrorsAndExceptionsOfFnAreTheRuns) {
  Cache cache(verifying());
  int mood = 0;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) -> absl::Status {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      if (mood == 1) throw std::runtime_error("of fn");
      return mood == 2 ? absl::NotFoundError("of fn") : absl::OkStatus();
    });
  };
  EXPECT_RUN(kInstantiated, run());
  mood = 1;
  EXPECT_THROW((void)run(), std::runtime_error);
  EXPECT_FALSE(is_capturing(stream));
  mood = 2;
  EXPECT_FAILURE(kNotFound, run());
  mood = 0;
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_EQ(cache.stats().verified, 1u);
  EXPECT_EQ(cache.stats().stale, 0u);
}

TEST_F(VerifyHitsTest, EveryNthHitOfEachKey) {
  Cache cache(verifying(OnStale::kReport, 3));
  int calls = 0;
  for (int i = 0; i < 10; ++i) {
    for (const char* const name : {"a", "b"}) {
      ASSERT_TRUE(cache
                      .run(key(name), stream,
                           [&](cudaStream_t on) {
                             ++calls;
                             return launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f);
                           })
                      .ok());
    }
  }
  EXPECT_EQ(calls, 2 * (1 + 3));
  EXPECT_EQ(cache.stats().verified, 6u);
  EXPECT_EQ(cache.stats().captures, 2u);
  EXPECT_TRUE(holds_all(to_string(cache.stats()), {"verified hits 6, stale 0"}));
}

// A hit from a template is verified before there is an executable.
TEST_F(VerifyHitsTest, RestoredKeysAreVerified) {
  for (const OnStale on_stale : {OnStale::kReport, OnStale::kForget, OnStale::kReturnError}) {
    Options options = verifying(on_stale);
    options.max_executables = 1;
    options.share = false;
    Cache cache(options);
    float value = 2;
    const auto run = [&](const char* name) {
      return cache.run(key(name), stream,
                       [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, value); });
    };
    EXPECT_RUN(kInstantiated, run("a"));
    EXPECT_RUN(kInstantiated, run("b"));
    value = 3;
    if (on_stale == OnStale::kReport) {
      EXPECT_RUN(kRestored, run("a"));
    }
    if (on_stale == OnStale::kForget) {
      EXPECT_RUN(kInstantiated, run("a"));
    }
    if (on_stale == OnStale::kReturnError) {
      EXPECT_FAILURE(kFailedPrecondition, run("a"));
    }
    EXPECT_EQ(data.first(), on_stale == OnStale::kForget ? 3 : 2);
    EXPECT_EQ(cache.stats().stale, 1u);
    EXPECT_TRUE(holds_all(findings(cache), {"argument 2 was"}));
  }
}

TEST_F(VerifyHitsTest, StreamThatIsCapturingIsRefusedAndItsCaptureWhole) {
  Cache cache(verifying());
  const auto run = [&] {
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f); });
  };
  EXPECT_RUN(kInstantiated, run());
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kFailedPrecondition, run());
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  EXPECT_RUN(kReplayed, run());
}

// ---- Options --------------------------------------------------------------------------------------------------------

TEST_F(VerifyHitsTest, OnCaptureFailureHasTwoValues) {
  Options options;
  options.on_capture_failure = static_cast<OnCaptureFailure>(7);
  const Cache cache(options);
  EXPECT_FAILURE(kInvalidArgument, cache.status());
  EXPECT_TRUE(holds_all(cache.status().ToString(), {"Options::on_capture_failure has an invalid value (7)"}));
}

TEST_F(VerifyHitsTest, OptionsThatMakeNoSense) {
  EXPECT_FAILURE(kInvalidArgument, Cache(verifying(OnStale::kReport, -1)).status());
  EXPECT_FAILURE(kInvalidArgument, Cache(verifying(static_cast<OnStale>(7))).status());
}

TEST_F(VerifyHitsTest, EnvironmentTurnsItOn) {
  const auto with = [](const char* value, const Options& options) {
    setenv("GRAPHCACHE_VERIFY", value, 1);
    const Cache cache(options);
    unsetenv("GRAPHCACHE_VERIFY");
    return cache.status().ok() ? cache.options().verify_every : -1;
  };
  EXPECT_EQ(with("5", {}), 5);
  EXPECT_EQ(with("0", {}), 0);
  EXPECT_EQ(with("5", verifying(OnStale::kReport, 2)), 2);
  for (const char* const wrong : {"", "x", "-1", "3x", "99999999999"}) EXPECT_EQ(with(wrong, {}), -1) << wrong;
  EXPECT_EQ(Cache().options().verify_every, 0);
}

}  // namespace
}  // namespace graphcache::test
