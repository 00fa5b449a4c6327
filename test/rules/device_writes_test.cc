// What device code writes into the nodes of its graph, on the runtime without graphcache: the alignment that a value
// needs, and which values outlive a launch on a stream of another priority. These are the tables in docs/semantics.md
// ("What a kernel writes into nodes", "Streams of another priority"). For GPUs only.
#include "device_writes.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda/compat.h"
#include "device_writes_image.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kNodes = 6, kBranches = 3;

// The launch parameters of every node of a graph.
struct Launch {
  unsigned grid = 2, block = 32, shared_bytes = 0;
  int value = 1;
  bool negative = false, enabled = true;
};

struct Shape {
  // `branches` gives the kernels several priorities; `beside` adds a set and a copy.
  bool branches, beside, priorities;
};

class DeviceWritesTest : public testing::Test {
 protected:
  void SetUp() override {
    int major = 0;
    CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 8 || device_writes_image[0] == 0) GTEST_SKIP() << "no device code for this device";
    if (CUDART_VERSION < 12080) GTEST_SKIP() << "this runtime launches no kernels of libraries";
    CUDA_OK(cudaLibraryLoadData(&library, device_writes_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUDA_OK(cudaLibraryGetKernel(&values, library, "record_values"));
    CUDA_OK(cudaLibraryGetKernel(&negatives, library, "record_negative"));
    CUDA_OK(cudaLibraryGetKernel(&writer, library, "write_nodes"));
    int low = 0, high = 0;
    CUDA_OK(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (const int priority : {low, low, high, (low + high) / 2}) streams.push_back(stream_of(priority));
    for (int i = 0; i < kBranches; ++i) alike.push_back(stream_of(low));
    several = {stream_of(high), stream_of(low), stream_of((low + high) / 2)};
  }
  void TearDown() override {
    for (const auto* list : {&streams, &alike, &several}) {
      for (const cudaStream_t stream : *list) CUDA_OK(cudaStreamDestroy(stream));
    }
    if (library == nullptr) return;
    CUDA_OK(cudaLibraryUnload(library));
  }

  static cudaStream_t stream_of(int priority) {
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
    return stream;
  }

  cudaGraph_t record(const Shape& shape, const Launch& launch) {
    const cudaStream_t stream = streams[0];
    const std::vector<cudaStream_t>& branches = shape.priorities ? several : alike;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (shape.branches) {
      CUDA_OK(cudaEventRecord(event, stream));
      for (const cudaStream_t branch : branches) CUDA_OK(cudaStreamWaitEvent(branch, event, 0));
    }
    for (int i = 0; i < kNodes; ++i) {
      const cudaStream_t on = shape.branches ? branches[static_cast<std::size_t>(i % kBranches)] : stream;
      Seen* out = seen.get() + i;
      int value = launch.value;
      void* arguments[] = {&out, &value};
      CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(launch.negative ? negatives : values), launch.grid,
                               launch.block, arguments, launch.shared_bytes, on));
      if (!shape.beside || i == 0 || i >= kBranches) continue;
      if (i == 1) {
        CUDA_OK(cudaMemsetAsync(scratch.get(), 1, 64, on));
      } else {
        CUDA_OK(cudaMemcpyAsync(scratch.get() + 64, scratch.get() + 128, 64, cudaMemcpyDeviceToDevice, on));
      }
    }
    for (std::size_t i = 0; shape.branches && i < branches.size(); ++i) {
      CUDA_OK(cudaEventRecord(event, branches[i]));
      CUDA_OK(cudaStreamWaitEvent(stream, event, 0));
    }
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }

  // Makes `graph` and `executable`. If the kernels are to be updatable, a node before all others writes them.
  void make(const Shape& shape, bool updatable, unsigned long long flags) {
    launch = {};
    graph = record(shape, launch);
    std::size_t count = 0;
    CUDA_OK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> all(count);
    CUDA_OK(cudaGraphGetNodes(graph, all.data(), &count));
    nodes.clear();
    for (const cudaGraphNode_t node : all) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      CUDA_OK(cudaGraphNodeGetType(node, &type));
      if (type == cudaGraphNodeTypeKernel) nodes.push_back(node);
    }
    if (updatable) add_writer();
    CUDA_OK(cudaGraphInstantiate(&executable, graph, flags));
    CUDA_OK(cudaGraphUpload(executable, streams[0]));
    CUDA_OK(cudaDeviceSynchronize());
  }
  // Lets device code write into a kernel node.
  static cudaGraphDeviceNode_t on_device(cudaGraphNode_t node) {
    cudaLaunchAttributeValue value;
    std::memset(&value, 0, sizeof value);
    value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    CUDA_OK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeDeviceUpdatableKernelNode, &value));
    return value.deviceUpdatableKernelNode.devNode;
  }
  // Adds a node of one block, before these nodes.
  cudaGraphNode_t add(cudaKernel_t kernel, unsigned threads, void** arguments,
                      const std::vector<cudaGraphNode_t>& then) {
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(kernel);
    params.gridDim = 1;
    params.blockDim = threads;
    params.kernelParams = arguments;
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    for (const cudaGraphNode_t one : then) CUDA_OK(add_dependency(graph, node, one));
    return node;
  }
  void add_writer() {
    std::vector<cudaGraphDeviceNode_t> handles;
    for (const cudaGraphNode_t node : nodes) handles.push_back(on_device(node));
    targets.write(handles);
    std::size_t count = 0;
    CUDA_OK(cudaGraphGetRootNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> roots(count);
    CUDA_OK(cudaGraphGetRootNodes(graph, roots.data(), &count));
    void *to = targets.get(), *what = write.get(), *failed = error.get();
    void* arguments[] = {&to, &what, &failed};
    add(writer, kNodes, arguments, roots);
  }

  void set_params() {
    for (int i = 0; i < kNodes; ++i) {
      Seen* out = seen.get() + i;
      int value = launch.value;
      void* arguments[] = {&out, &value};
      cudaKernelNodeParams params = {};
      params.func = reinterpret_cast<void*>(launch.negative ? negatives : values);
      params.gridDim = launch.grid;
      params.blockDim = launch.block;
      params.sharedMemBytes = launch.shared_bytes;
      params.kernelParams = arguments;
      CUDA_OK(cudaGraphExecKernelNodeSetParams(executable, nodes[static_cast<std::size_t>(i)], &params));
    }
  }
  void update(const Shape& shape) {
    const cudaGraph_t other = record(shape, launch);
    cudaGraphExecUpdateResultInfo info = {};
    CUDA_OK(cudaGraphExecUpdate(executable, other, &info));
    CUDA_OK(cudaGraphDestroy(other));
  }

  // Whether a launch on the stream does what `launch` says.
  bool is_right(cudaStream_t stream, const Write& what) {
    write.write({what});
    error.write({0});
    seen.write(std::vector<Seen>(kNodes));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    bool right = error.first() == 0;
    for (const Seen& one : seen.read()) {
      const int grid = static_cast<int>(launch.grid);
      right = right &&
              (launch.enabled ? one.blocks == grid && one.grid == grid && one.block == static_cast<int>(launch.block) &&
                                    one.shared_bytes == static_cast<int>(launch.shared_bytes) &&
                                    one.value == (launch.negative ? -launch.value : launch.value)
                              : one.blocks == 0);
    }
    return right;
  }

  // The number of wrong launches among twelve around a change.
  int wrong_launches(const Shape& shape, bool updatable, unsigned long long flags, bool priorities,
                     const std::function<Write(const Shape&)>& change) {
    make(shape, updatable, flags);
    const cudaStream_t a = streams[0], b = streams[priorities ? 2 : 1], c = streams[priorities ? 3 : 0];
    int wrong = is_right(a, {}) ? 0 : 1;
    const Write what = change(shape);
    wrong += is_right(a, what) ? 0 : 1;
    for (const cudaStream_t stream : {a, b, b, c, a, a}) wrong += is_right(stream, {}) ? 0 : 1;
    wrong += is_right(b, what) ? 0 : 1;
    for (const cudaStream_t stream : {b, cudaStreamPerThread, a}) wrong += is_right(stream, {}) ? 0 : 1;
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
    return wrong;
  }

  cudaLibrary_t library = nullptr;
  cudaKernel_t values = nullptr, negatives = nullptr, writer = nullptr;
  std::vector<cudaStream_t> streams, alike, several;
  Event event;
  DeviceBuffer<Seen> seen{kNodes};
  DeviceBuffer<char> scratch{256};
  DeviceBuffer<cudaGraphDeviceNode_t> targets{kNodes};
  DeviceBuffer<Write> write{1};
  DeviceBuffer<int> error{1};
  Launch launch;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::vector<cudaGraphNode_t> nodes;
};

TEST_F(DeviceWritesTest, OnlyGridsAndEnabledStatesThatTheDeviceWroteAreLostOnAnotherPriority) {
  struct Change {
    const char* name;
    bool updatable, is_lost;
    std::function<Write(const Shape&)> make;
  };
  const auto by_host = [this](auto Launch::*field, auto value) {
    return [this, field, value](const Shape&) {
      launch.*field = value;
      set_params();
      return Write{};
    };
  };
  const auto uploaded = [this](const auto& change) {
    return [this, change](const Shape& shape) {
      const Write none = change(shape);
      CUDA_OK(cudaGraphUpload(executable, streams[0]));
      CUDA_OK(cudaDeviceSynchronize());
      return none;
    };
  };
  const auto by_update = [this](auto Launch::*field, auto value) {
    return [this, field, value](const Shape& shape) {
      launch.*field = value;
      update(shape);
      return Write{};
    };
  };
  const auto by_device = [this](const Write& what) {
    return [this, what](const Shape&) {
      if (what.value) launch.value = what.new_value;
      if (what.grid) launch.grid = what.new_grid;
      if (what.disable) launch.enabled = false;
      return what;
    };
  };
  const std::vector<Change> changes = {
      {"device: argument", true, false, by_device({true, false, false, 77, 0})},
      {"device: grid", true, true, by_device({false, true, false, 0, 5})},
      {"device: argument and grid", true, true, by_device({true, true, false, 78, 5})},
      {"device: disabled", true, true, by_device({false, false, true, 0, 0})},
      {"device: nothing", true, false, by_device({})},
      {"uploaded: argument", true, false, uploaded(by_host(&Launch::value, 79))},
      {"uploaded: grid", true, false, uploaded(by_host(&Launch::grid, 4u))},
      {"uploaded: block", true, false, uploaded(by_host(&Launch::block, 64u))},
      {"uploaded: shared bytes", true, false, uploaded(by_host(&Launch::shared_bytes, 512u))},
      {"SetParams: argument", false, false, by_host(&Launch::value, 80)},
      {"SetParams: grid", false, false, by_host(&Launch::grid, 6u)},
      {"SetParams: block", false, false, by_host(&Launch::block, 64u)},
      {"SetParams: shared bytes", false, false, by_host(&Launch::shared_bytes, 1024u)},
      {"SetParams: kernel", false, false, by_host(&Launch::negative, true)},
      {"SetEnabled", false, false,
       [this](const Shape&) {
         launch.enabled = false;
         for (const cudaGraphNode_t node : nodes) CUDA_OK(cudaGraphNodeSetEnabled(executable, node, 0));
         return Write{};
       }},
      {"update: argument", false, false, by_update(&Launch::value, 81)},
      {"update: grid", false, false, by_update(&Launch::grid, 7u)},
      {"update: block", false, false, by_update(&Launch::block, 96u)},
      {"update: shared bytes", false, false, by_update(&Launch::shared_bytes, 256u)},
      {"update: kernel", false, false, by_update(&Launch::negative, true)},
  };
  const Shape shapes[] = {{false, false, false}, {false, true, false}, {true, false, false},
                          {true, true, false},   {true, false, true},  {true, true, true}};
  for (const Change& change : changes) {
    for (const Shape& shape : shapes) {
      for (const unsigned long long flags :
           {0ull, static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)}) {
        for (const bool priorities : {false, true}) {
          SCOPED_TRACE(testing::Message() << change.name << ", branches " << shape.branches << ", beside "
                                          << shape.beside << ", of several priorities " << shape.priorities
                                          << ", flags " << flags << ", streams of several priorities " << priorities);
          const int wrong = wrong_launches(shape, change.updatable, flags, priorities, change.make);
          // If none is wrong any more, the driver has changed, and the library does not need the flag.
          if (change.is_lost && flags == 0 && priorities) {
            EXPECT_GT(wrong, 0);
          } else {
            EXPECT_EQ(wrong, 0);
          }
        }
      }
    }
  }
}

// A kernel that records its parameter, behind a node that writes one value into that.
class DeviceSpansTest : public DeviceWritesTest {
 protected:
  void SetUp() override {
    DeviceWritesTest::SetUp();
    if (IsSkipped()) return;
    cudaKernel_t recorder = nullptr, span_writer = nullptr;
    CUDA_OK(cudaLibraryGetKernel(&recorder, library, "record_parameter"));
    CUDA_OK(cudaLibraryGetKernel(&span_writer, library, "write_span"));
    for (unsigned i = 0; i < sizeof value.v; ++i) value.v[i] = static_cast<unsigned char>(3 * i + 1);
    in_memory.write({value});

    CUDA_OK(cudaGraphCreate(&graph, 0));
    Parameter* to = parameter_seen.get();
    void* recorded[] = {&wanted, &to};
    const cudaGraphNode_t node = add(recorder, 1, recorded, {});
    cudaGraphDeviceNode_t handle = on_device(node);
    const Parameter* from = in_memory.get();
    const Span* what = span.get();
    int* failed = error.get();
    void* written[] = {&value, &from, &handle, &what, &failed};
    ASSERT_NE(add(span_writer, 1, written, {node}), nullptr);
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphUpload(executable, streams[0]));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void TearDown() override {
    if (!IsSkipped()) {
      CUDA_OK(cudaGraphExecDestroy(executable));
      CUDA_OK(cudaGraphDestroy(graph));
    }
    DeviceWritesTest::TearDown();
  }

  // Launches with this write, and waits.
  cudaError_t write_span(const Span& what) {
    span.write({what});
    const cudaError_t launched = cudaGraphLaunch(executable, streams[0]);
    return launched != cudaSuccess ? launched : cudaStreamSynchronize(streams[0]);
  }

  Parameter value = {}, wanted = {};  // what the device writes, and what the node should have
  DeviceBuffer<Parameter> in_memory{1}, parameter_seen{1};
  DeviceBuffer<Span> span{1};
};

constexpr ValueIn kPlaces[] = {ValueIn::kParameters, ValueIn::kLocalMemory, ValueIn::kGlobalMemory};

// The largest power of two that divides offset and size, at most 8.
unsigned unit_of(unsigned offset, unsigned size) {
  unsigned unit = 8;
  while (offset % unit != 0 || size % unit != 0) unit /= 2;
  return unit;
}

TEST_F(DeviceSpansTest, AValueThatIsAlignedToThePowerOfTwoThatDividesOffsetAndSizeIsWritten) {
  for (const ValueIn in : kPlaces) {
    for (const unsigned offset : {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24}) {
      for (const unsigned size : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 31, 32, 33, 40}) {
        for (unsigned at = 0; at < 8; at += unit_of(offset, size)) {
          SCOPED_TRACE(testing::Message() << "offset " << offset << ", size " << size << ", value at " << at
                                          << ", in memory of kind " << static_cast<int>(in));
          ASSERT_TRUE(cuda_ok(write_span({offset, size, at, in})));
          ASSERT_EQ(error.first(), cudaSuccess);
          std::memcpy(wanted.v + offset, value.v + at, size);
          const Parameter got = parameter_seen.first();
          ASSERT_EQ(std::memcmp(got.v, wanted.v, sizeof got.v), 0);
        }
      }
    }
  }
}

// Each write is in a process of its own, because it loses the context.
TEST_F(DeviceSpansTest, AnyOtherValueLosesTheContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Span spans[] = {{8, 8, 4, ValueIn::kParameters},   {8, 8, 4, ValueIn::kLocalMemory},
                        {8, 8, 4, ValueIn::kGlobalMemory}, {0, 32, 2, ValueIn::kParameters},
                        {4, 8, 2, ValueIn::kParameters},   {2, 8, 1, ValueIn::kParameters}};
  for (const Span& what : spans) {
    SCOPED_TRACE(testing::Message() << "offset " << what.offset << ", size " << what.size << ", value at " << what.at
                                    << ", in memory of kind " << static_cast<int>(what.in));
    const auto lose_context = [&] {
      const bool lost =
          write_span(what) == cudaErrorMisalignedAddress && cudaDeviceSynchronize() == cudaErrorMisalignedAddress;
      std::_Exit(lost ? 0 : 1);
    };
    EXPECT_EXIT(lose_context(), testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace graphcache::test
