// What cudaGraphExecUpdate answers when one property of a node changes, and what the executable then does: the table
// "What an update says and does" of docs/semantics.md. For GPUs alone, since it is the driver that is asked. An answer
// that is accepted and not carried out is a lie that a cache must not believe.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support.h"
#include "update_kernels.h"

namespace graphcache::test {
namespace {

enum class Answer {
  kApplied,   // Accepted and carried out.
  kLie,       // Accepted, and the executable does what it did before.
  kAccepted,  // Accepted; whether it is carried out, a program cannot see.
  kRefused,   // cudaErrorGraphExecUpdateFailure, and the executable does what it did before.
};

using Attributes = std::vector<cudaLaunchAttribute>;
using Change = std::function<void(cudaLaunchConfig_t&, Attributes&)>;

Change attribute(cudaLaunchAttributeID id, std::function<void(cudaLaunchAttributeValue&)> set) {
  return [id, set](cudaLaunchConfig_t&, Attributes& attributes) {
    cudaLaunchAttribute attribute;
    std::memset(&attribute, 0, sizeof attribute);  // Some are refused with other bytes set (facts, 26).
    attribute.id = id;
    set(attribute.val);
    attributes.push_back(attribute);
  };
}

Change cluster(unsigned size) {
  return attribute(cudaLaunchAttributeClusterDimension, [size](auto& value) { value.clusterDim = {size, 1, 1}; });
}

class UpdateAnswersTest : public StreamTest {
 protected:
  // A graph of what `enqueue` captures.
  cudaGraph_t captured(const std::function<void()>& enqueue) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }

  void launch(const Change& change, void (*kernel)(LaunchReport*) = report_launch) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(8);
    config.blockDim = dim3(32);
    config.stream = stream;
    Attributes attributes;
    if (change) change(config, attributes);
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    LaunchReport* out = report.get();
    void* arguments[] = {&out};
    CUDA_OK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments));
  }

  // Instantiates `from`, updates it from `to`, and launches it. The answer, by what `seen` tells of the launches of
  // each graph as it stands and of the updated executable; null: nothing of it can be seen.
  template <class T>
  Answer answer(cudaGraph_t from, cudaGraph_t to, const std::function<T()>& seen, unsigned long long flags = 0) {
    cudaGraphExec_t updated = nullptr, wanted = nullptr;
    CUDA_OK(cudaGraphInstantiate(&updated, from, flags));
    CUDA_OK(cudaGraphInstantiate(&wanted, to, flags));
    const auto run = [&](cudaGraphExec_t exec) {
      CUDA_OK(cudaMemset(memory.get(), 0, kMemory));
      CUDA_OK(cudaMemset(report.get(), 0, sizeof(LaunchReport)));
      CUDA_OK(cudaGraphLaunch(exec, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      return seen ? seen() : T{};
    };
    const T before = run(updated);
    const T right = run(wanted);
    if (seen) {
      EXPECT_NE(before, right) << "the change cannot be seen";
    }
    cudaGraphExecUpdateResultInfo info = {};
    const cudaError_t error = cudaGraphExecUpdate(updated, to, &info);
    cudaGetLastError();
    const T after = run(updated);
    CUDA_OK(cudaGraphExecDestroy(updated));
    CUDA_OK(cudaGraphExecDestroy(wanted));
    CUDA_OK(cudaGraphDestroy(from));
    CUDA_OK(cudaGraphDestroy(to));
    if (error != cudaSuccess) {
      EXPECT_EQ(error, cudaErrorGraphExecUpdateFailure);
      EXPECT_EQ(after, before) << "refused, and something was applied";
      return Answer::kRefused;
    }
    if (!seen) return Answer::kAccepted;
    if (after == right) return Answer::kApplied;
    EXPECT_EQ(after, before) << "neither the old nor the new";
    return Answer::kLie;
  }

  // Of a kernel node.
  Answer of_kernel(const Change& from, const Change& to, int LaunchReport::*seen = nullptr,
                   unsigned long long flags = 0, void (*kernel)(LaunchReport*) = report_launch) {
    std::function<int()> see;
    if (seen != nullptr) see = [=, this] { return report.read()[0].*seen; };
    return answer<int>(captured([&] { launch(from); }), captured([&] { launch(to, kernel); }), see, flags);
  }

  // Of a copy or set; all of the memory that they write is seen.
  Answer of_memory(const std::function<void()>& from, const std::function<void()>& to) {
    return answer<std::vector<char>>(captured(from), captured(to), [this] { return memory.read(); });
  }

  static constexpr int kMemory = 8192;
  DeviceBuffer<LaunchReport> report{1};
  DeviceBuffer<char> memory{kMemory};
};

TEST_F(UpdateAnswersTest, LaunchShapeAndFunctionAreApplied) {
  EXPECT_EQ(of_kernel(
                nullptr, [](auto& config, auto&) { config.gridDim = dim3(3); }, &LaunchReport::grid),
            Answer::kApplied);
  EXPECT_EQ(of_kernel(
                nullptr, [](auto& config, auto&) { config.blockDim = dim3(64); }, &LaunchReport::block),
            Answer::kApplied);
  EXPECT_EQ(of_kernel(
                nullptr, [](auto& config, auto&) { config.dynamicSmemBytes = 4096; }, &LaunchReport::shared_bytes),
            Answer::kApplied);
  EXPECT_EQ(of_kernel(nullptr, nullptr, &LaunchReport::kernel, 0, report_launch_otherwise), Answer::kApplied);
}

TEST_F(UpdateAnswersTest, ClusterSizeIsALie) {
  int major = 0;
  CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) GTEST_SKIP() << "clusters need compute capability 9.0";
  EXPECT_EQ(of_kernel(nullptr, cluster(2), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_kernel(cluster(2), cluster(4), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_kernel(cluster(4), nullptr, &LaunchReport::cluster), Answer::kLie);
}

TEST_F(UpdateAnswersTest, CooperativeIsRefused) {
  const Change cooperative = attribute(cudaLaunchAttributeCooperative, [](auto& value) { value.cooperative = 1; });
  EXPECT_EQ(of_kernel(nullptr, cooperative, &LaunchReport::cooperative), Answer::kRefused);
  EXPECT_EQ(of_kernel(cooperative, nullptr, &LaunchReport::cooperative), Answer::kRefused);
}

TEST_F(UpdateAnswersTest, PriorityIsRefusedWhereItCounts) {
  const Change urgent = attribute(cudaLaunchAttributePriority, [](auto& value) { value.priority = -3; });
  EXPECT_EQ(of_kernel(nullptr, urgent), Answer::kAccepted);
  EXPECT_EQ(of_kernel(nullptr, urgent, nullptr, cudaGraphInstantiateFlagUseNodePriority), Answer::kRefused);
}

// A cache must take these for lies, as nobody can see otherwise.
TEST_F(UpdateAnswersTest, AttributesThatNobodySeesAreAccepted) {
  void* const window = memory.get();
  const Change changes[] = {
      attribute(
          cudaLaunchAttributeAccessPolicyWindow,
          [=](auto& value) {
            value.accessPolicyWindow = {window, 4096, 0.5f, cudaAccessPropertyPersisting, cudaAccessPropertyStreaming};
          }),
      attribute(cudaLaunchAttributeMemSyncDomain,
                [](auto& value) { value.memSyncDomain = cudaLaunchMemSyncDomainRemote; }),
      attribute(cudaLaunchAttributeMemSyncDomainMap,
                [](auto& value) {
                  value.memSyncDomainMap = {1, 1};
                }),
      attribute(cudaLaunchAttributeClusterSchedulingPolicyPreference,
                [](auto& value) { value.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread; }),
      attribute(cudaLaunchAttributePreferredSharedMemoryCarveout, [](auto& value) { value.sharedMemCarveout = 100; }),
  };
  for (const Change& change : changes) EXPECT_EQ(of_kernel(nullptr, change), Answer::kAccepted) << &change - changes;
}

TEST_F(UpdateAnswersTest, ProgrammaticEdgeIsRefused) {
  const Change programmatic = attribute(cudaLaunchAttributeProgrammaticStreamSerialization,
                                        [](auto& value) { value.programmaticStreamSerializationAllowed = 1; });
  const auto two = [&](const Change& second) {
    return captured([&] {
      launch(nullptr);
      launch(second);
    });
  };
  EXPECT_EQ(answer<int>(two(nullptr), two(programmatic), nullptr), Answer::kRefused);
}

TEST_F(UpdateAnswersTest, SetsMayChangeAllButTheShapeOfTwoDimensions) {
  char* const p = memory.get();
  const auto set = [&](int at, int value, std::size_t bytes) {
    return [=, this] { CUDA_OK(cudaMemsetAsync(p + at, value, bytes, stream)); };
  };
  const auto set_2d = [&](int value, std::size_t width) {
    return [=, this] { CUDA_OK(cudaMemset2DAsync(p, 128, value, width, 4, stream)); };
  };
  EXPECT_EQ(of_memory(set(0, 1, 64), set(0, 5, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 64), set(4096, 1, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 64), set(0, 1, 4096)), Answer::kApplied);
  EXPECT_EQ(of_memory(set(0, 1, 4096), set(0, 1, 63)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_2d(1, 64), set_2d(6, 64)), Answer::kApplied);
  EXPECT_EQ(of_memory(set_2d(1, 64), set_2d(1, 100)), Answer::kRefused);
  EXPECT_EQ(of_memory(set(0, 1, 256), set_2d(1, 64)), Answer::kRefused);
}

TEST_F(UpdateAnswersTest, CopiesMayChangeAllButTheirKindAndTwoDimensions) {
  char* const p = memory.get();
  DeviceBuffer<char> device(4096);
  CUDA_OK(cudaMemset(device.get(), 3, 4096));
  char *pinned = nullptr, *other = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4096));
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&other), 4096));
  std::memset(pinned, 1, 4096);
  std::memset(other, 2, 4096);
  const std::vector<char> pageable(4096, 7);
  const auto copy = [&](const char* from, std::size_t bytes, cudaMemcpyKind kind) {
    return [=, this] { CUDA_OK(cudaMemcpyAsync(p, from, bytes, kind, stream)); };
  };
  const auto copy_2d = [&](std::size_t width) {
    return [=, this, from = device.get()] {
      CUDA_OK(cudaMemcpy2DAsync(p, 128, from, 128, width, 4, cudaMemcpyDeviceToDevice, stream));
    };
  };
  const auto any = cudaMemcpyDefault;
  const auto up = cudaMemcpyHostToDevice;
  const auto across = cudaMemcpyDeviceToDevice;
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(other, 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(pinned, 4096, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, any), copy(device.get(), 64, any)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(pageable.data(), 64, up)), Answer::kApplied);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(device.get(), 64, across)), Answer::kRefused);
  EXPECT_EQ(of_memory(copy(pinned, 64, up), copy(other, 64, any)), Answer::kRefused);
  EXPECT_EQ(of_memory(copy(device.get(), 256, across), copy_2d(64)), Answer::kRefused);
  EXPECT_EQ(of_memory(copy_2d(64), copy_2d(100)), Answer::kRefused);
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFreeHost(other));
}

}  // namespace
}  // namespace graphcache::test
