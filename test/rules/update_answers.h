// Shared by the suites update_answers*_test.cc: the result of cudaGraphExecUpdate for a change in a graph, and the
// effect on the executable. The results are the table "What an update says and does" of docs/semantics.md.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <ostream>
#include <vector>

#include "support.h"
#include "update_kernels.h"

namespace graphcache::test {

enum class Answer {
  kApplied,   // accepted and applied
  kLie,       // accepted, and the executable is unchanged
  kMixed,     // accepted, and the executable does neither the old nor the new work
  kAccepted,  // accepted; a program cannot see whether it is applied
  // cudaErrorGraphExecUpdateFailure, and the executable is unchanged. By cudaGraphExecUpdateResult:
  kRefusedTopology,
  kRefusedNodeType,
  kRefusedFunction,
  kRefusedParameters,
  kRefusedAttributes,
  kRefusedNode,       // cudaGraphExecUpdateErrorNotSupported
  kRefusedOtherwise,  // any other result
  kNotSupported,      // cudaErrorNotSupported, and the executable is unchanged
  kFailed,            // any other error
  kNotAsked,          // there was no graph or no executable
};

inline void PrintTo(Answer answer, std::ostream* out) {
  switch (answer) {
    case Answer::kApplied:
      *out << "accepted, does the new";
      return;
    case Answer::kLie:
      *out << "accepted, does the old (a lie)";
      return;
    case Answer::kMixed:
      *out << "accepted, does neither the old nor the new";
      return;
    case Answer::kAccepted:
      *out << "accepted, cannot be seen";
      return;
    case Answer::kRefusedTopology:
      *out << "refused (TopologyChanged)";
      return;
    case Answer::kRefusedNodeType:
      *out << "refused (NodeTypeChanged)";
      return;
    case Answer::kRefusedFunction:
      *out << "refused (FunctionChanged or UnsupportedFunctionChange)";
      return;
    case Answer::kRefusedParameters:
      *out << "refused (ParametersChanged)";
      return;
    case Answer::kRefusedAttributes:
      *out << "refused (AttributesChanged)";
      return;
    case Answer::kRefusedNode:
      *out << "refused (NotSupported)";
      return;
    case Answer::kRefusedOtherwise:
      *out << "refused (another result)";
      return;
    case Answer::kNotSupported:
      *out << "cudaErrorNotSupported";
      return;
    case Answer::kFailed:
      *out << "another error";
      return;
    case Answer::kNotAsked:
      *out << "not asked: no graph or no executable";
      return;
  }
}

inline Answer refused(cudaError_t error, cudaGraphExecUpdateResult result) {
  if (error == cudaErrorNotSupported) return Answer::kNotSupported;
  if (error != cudaErrorGraphExecUpdateFailure) {
    CUDA_OK(error);
    return Answer::kFailed;
  }
  switch (result) {
    case cudaGraphExecUpdateErrorTopologyChanged:
      return Answer::kRefusedTopology;
    case cudaGraphExecUpdateErrorNodeTypeChanged:
      return Answer::kRefusedNodeType;
    case cudaGraphExecUpdateErrorFunctionChanged:
    case cudaGraphExecUpdateErrorUnsupportedFunctionChange:
      return Answer::kRefusedFunction;
    case cudaGraphExecUpdateErrorParametersChanged:
      return Answer::kRefusedParameters;
    case cudaGraphExecUpdateErrorAttributesChanged:
      return Answer::kRefusedAttributes;
    case cudaGraphExecUpdateErrorNotSupported:
      return Answer::kRefusedNode;
    default:
      return Answer::kRefusedOtherwise;
  }
}

using Enqueue = std::function<void()>;
using Attributes = std::vector<cudaLaunchAttribute>;
using Change = std::function<void(cudaLaunchConfig_t&, Attributes&)>;

inline Change attribute(cudaLaunchAttributeID id, std::function<void(cudaLaunchAttributeValue&)> set) {
  return [id, set](cudaLaunchConfig_t&, Attributes& attributes) {
    cudaLaunchAttribute attribute;
    std::memset(&attribute, 0, sizeof attribute);  // some launches fail if other bytes are set (fact 26)
    attribute.id = id;
    set(attribute.val);
    attributes.push_back(attribute);
  };
}

inline Change cluster(unsigned size) {
  return attribute(cudaLaunchAttributeClusterDimension, [size](auto& value) { value.clusterDim = {size, 1, 1}; });
}

inline Change grid(unsigned size) {
  return [size](cudaLaunchConfig_t& config, Attributes&) { config.gridDim = dim3(size); };
}

inline Change both(Change first, Change second) {
  return [first, second](cudaLaunchConfig_t& config, Attributes& attributes) {
    first(config, attributes);
    second(config, attributes);
  };
}

inline bool has_clusters() {
  int major = 0;
  CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major >= 9;
}

class UpdateAnswersTest : public StreamTest {
 protected:
  // A graph of the work that `enqueue` captures.
  cudaGraph_t captured(const Enqueue& enqueue) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }

  void launch(const Change& change = nullptr, int value = 1, void (*kernel)(LaunchReport*, int) = report_launch) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(8);
    config.blockDim = dim3(32);
    config.stream = stream;
    Attributes attributes;
    if (change) change(config, attributes);
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    LaunchReport* out = report.get();
    void* arguments[] = {&out, &value};
    CUDA_OK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments));
  }

  // One launch of `exec`, from cleared memory.
  template <class T>
  T run(cudaGraphExec_t exec, const std::function<T()>& seen) {
    CUDA_OK(cudaMemset(memory.get(), 0, kMemory));
    CUDA_OK(cudaMemset(report.get(), 0, sizeof(LaunchReport)));
    CUDA_OK(cudaDeviceSynchronize());
    if (before_launch) before_launch();
    CUDA_OK(cudaGraphLaunch(exec, stream));
    if (after_launch) after_launch();
    CUDA_OK(cudaStreamSynchronize(stream));
    return seen ? seen() : T{};
  }

  // Instantiates `from`, updates it from `to`, and launches it. Returns the answer, given what `seen` returns for
  // launches of each graph and of the updated executable. If `seen` is null, the effect cannot be seen.
  template <class T>
  Answer answer(cudaGraph_t from, cudaGraph_t to, const std::function<T()>& seen, unsigned long long flags = 0) {
    if (from == nullptr || to == nullptr) return Answer::kNotAsked;
    cudaGraphExec_t updated = nullptr, wanted = nullptr;
    CUDA_OK(cudaGraphInstantiate(&updated, from, flags));
    CUDA_OK(cudaGraphInstantiate(&wanted, to, flags));
    if (updated == nullptr || wanted == nullptr) return Answer::kNotAsked;
    const T before = run(updated, seen);
    const T right = run(wanted, seen);
    if (seen) {
      EXPECT_NE(before, right) << "the change cannot be seen";
    }
    cudaGraphExecUpdateResultInfo info = {};
    const cudaError_t error = cudaGraphExecUpdate(updated, to, &info);
    cudaGetLastError();
    const T after = run(updated, seen);
    CUDA_OK(cudaGraphExecDestroy(updated));
    CUDA_OK(cudaGraphExecDestroy(wanted));
    CUDA_OK(cudaGraphDestroy(from));
    CUDA_OK(cudaGraphDestroy(to));
    if (error != cudaSuccess) {
      EXPECT_EQ(after, before) << "refused, and something was applied";
      return refused(error, info.result);
    }
    if (!seen) return Answer::kAccepted;
    if (after == right) return Answer::kApplied;
    return after == before ? Answer::kLie : Answer::kMixed;
  }

  // For graphs whose kernel nodes report their launch: compares `member` of the report.
  Answer of_report(cudaGraph_t from, cudaGraph_t to, int LaunchReport::*member, unsigned long long flags = 0) {
    std::function<int()> see;
    if (member != nullptr) see = [=, this] { return report.first().*member; };
    return answer<int>(from, to, see, flags);
  }

  // For graphs that write to `memory`: compares all of it.
  Answer of_memory(cudaGraph_t from, cudaGraph_t to) {
    return answer<std::vector<char>>(from, to, [this] { return memory.read(); });
  }
  Answer of_memory(const Enqueue& from, const Enqueue& to) { return of_memory(captured(from), captured(to)); }

  static constexpr int kMemory = 8192;
  DeviceBuffer<LaunchReport> report{1};
  DeviceBuffer<char> memory{kMemory};
  std::function<void()> before_launch, after_launch;  // called around a run, unless null
};

}  // namespace graphcache::test
