// Launches, streams, events and memory: rules without a number.
#include "misuses.h"
#include "rules.h"

namespace graphcache::test {
namespace {

TEST_F(RuntimeRules, KernelsSeeTheirGridAndBlock) {
  OK(launch(record_launch, dim3(5, 3, 2), dim3(4, 2, 3), stream_, ints()));
  OK(launch(count_threads, dim3(5, 3, 2), dim3(4, 2, 3), stream_, ints(6)));
  const int expected[] = {5, 3, 2, 4, 2, 3, 5 * 3 * 2 * 4 * 2 * 3};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(expected[i], read<int>(i)) << i;
}

TEST_F(RuntimeRules, KernelsComputeEveryElement) {
  OK(launch(fill, 4, 128, stream_, device_, 500, 3.0f));
  OK(launch(scale, 2, 256, stream_, device_ + 512, device_, 500, 2.0f));
  OK(launch(axpy, 500, 1, stream_, device_ + 512, device_, 500, 0.5f));
  for (int i : {0, 1, 127, 128, 499}) EXPECT_EQ(7.5f, read(512 + i)) << i;
  EXPECT_EQ(0, read(1012));
}

TEST_F(RuntimeRules, ParametersOfAllSizesArriveWhole) {
  auto* out = reinterpret_cast<double*>(device_);
  OK(launch(many, 1, 1, stream_, out, 'A', 2.5, -3, 4.5f, 5000000000LL, 250, -7, 8.25f, 60000, -10.125));
  const double expected[] = {'A', 2.5, -3, 4.5, 5000000000.0, 250, -7, 8.25, 60000, -10.125};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(expected[i], read<double>(i)) << i;
  const Mixed sent = {'m', 1.25, -2, {3, 4, 5}, 200};
  OK(launch(copy_struct, 1, 1, stream_, reinterpret_cast<Mixed*>(device_), sent));
  const Mixed got = read<Mixed>();
  EXPECT_EQ('m', got.letter);
  EXPECT_EQ(1.25, got.real);
  EXPECT_EQ(-2, got.small);
  EXPECT_EQ(5, got.numbers[2]);
  EXPECT_EQ(200, got.last);
}

TEST_F(RuntimeRules, LaunchesThatCannotBeAreRefused) {
  misuses_on_purpose = true;
  const dim3 bad_blocks[] = {dim3(0), dim3(1, 0), dim3(1025), dim3(32, 33), dim3(1, 1, 65)};
  for (const dim3& block : bad_blocks) GIVES(kBadShape, launch(count_threads, 1, block, stream_, ints()));
  for (const dim3& grid : {dim3(0), dim3(1, 1, 0), dim3(1, 65536)}) {
    GIVES(kBadShape, launch(count_threads, grid, 1, stream_, ints()));
  }
  void* arguments[] = {nullptr};
  GIVES(cudaErrorInvalidValue,
        cudaLaunchKernel(reinterpret_cast<const void*>(count_threads), 1, 1, arguments, 1 << 20, stream_));
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  const cudaLaunchConfig_t config = {1, 32, 1 << 20, stream_, &cooperative, 1};
  int* out = ints();
  void* valid[] = {&out};
  GIVES(cudaErrorCooperativeLaunchTooLarge,
        cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(count_threads), valid));
  cudaLaunchAttributeValue cluster = {};
  cluster.clusterDim = {3, 1, 1};
  const cudaGraph_t graph = capture([this] { OK(launch(count_threads, 2, 1, stream_, ints())); });
  GIVES(cudaErrorInvalidClusterSize,
        cudaGraphKernelNodeSetAttribute(nodes(graph)[0], cudaLaunchAttributeClusterDimension, &cluster));
  GIVES(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(nullptr, 1, 1, arguments, 0, stream_));
  static int not_a_kernel;
  GIVES(kNoKernel, cudaLaunchKernel(&not_a_kernel, 1, 1, arguments, 0, stream_));
  EXPECT_EQ(0, read<int>());
}

// Whichever device is current. The programming guide says that such a launch would fail.
TEST_F(RuntimeRules, WorkRunsOnTheDeviceOfItsStream) {
  int devices = 0;
  OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  using Number = unsigned long long;
  auto* const number = reinterpret_cast<Number*>(device_);
  OK(launch(record_device, 1, 1, stream_, number));
  const Number own = read<Number>();
  const auto enqueue = [&] {
    OK(cudaSetDevice(1));
    OK(launch(record_device, 1, 1, stream_, number));
    OK(cudaMemsetAsync(number + 1, 7, 1, stream_));
    OK(cudaMemcpyAsync(number + 2, number, sizeof own, cudaMemcpyDeviceToDevice, stream_));
    OK(cudaSetDevice(0));
  };
  const cudaGraphExec_t executable = instantiate(capture(enqueue));
  for (const Body& work : {Body(enqueue), Body([&] { OK(cudaGraphLaunch(executable, stream_)); })}) {
    clear();
    work();
    EXPECT_EQ(own, read<Number>());
    EXPECT_EQ(7u, read<Number>(1));
    EXPECT_EQ(own, read<Number>(2));
  }
}

TEST_F(RuntimeRules, AStreamKeepsTheOrder) {
  for (int i = 0; i < 8; ++i) OK(launch(append, 1, 1, stream_, ints(1), ints(), 10 * i));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(10 * i, read<int>(1 + i));
}

TEST_F(RuntimeRules, ImplicitStreamsRunWork) {
  for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    OK(plus(1, stream));
    OK(cudaStreamSynchronize(stream));
    GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  }
  EXPECT_EQ(3, read());
}

TEST_F(RuntimeRules, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  const cudaGraphExec_t executable = instantiate(capture([this] { OK(plus(10, stream_)); }));
  const auto enqueue = [&] {
    OK(put(1, blocking_));
    OK(plus(1, nullptr));
    OK(cudaGraphLaunch(executable, cudaStreamLegacy));
    OK(cudaMemcpyAsync(device_ + 1, device_, sizeof(float), cudaMemcpyDeviceToDevice, nullptr));
    OK(cudaEventRecord(fork_, nullptr));
    OK(launch(scale, 1, 1, cudaStreamPerThread, device_, device_, 1, 2.0f));
    OK(put(7, other_, 2));
  };
  enqueue();  // so that nothing is loaded while a stream is busy
  clear();
  Busy busy(blocking_);
  enqueue();
  GIVES(cudaSuccess, cudaStreamSynchronize(other_));  // the other stream is independent
  for (cudaStream_t waits : {blocking_, cudaStreamLegacy, cudaStreamPerThread}) {
    GIVES(cudaErrorNotReady, cudaStreamQuery(waits));
  }
  GIVES(cudaErrorNotReady, cudaEventQuery(fork_));
  busy.end();
  EXPECT_EQ(24, read());
  EXPECT_EQ(12, read(1));
  EXPECT_EQ(7, read(2));
}

TEST_F(RuntimeRules, StreamsReportTheirProperties) {
  cudaStream_t urgent = nullptr;
  OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -100));  // clamped
  int least = 0, greatest = 0, priority = 0;
  [[maybe_unused]] int device = -1;
  unsigned flags = 0;
  unsigned long long id = 0, other_id = 0;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OK(cudaStreamGetPriority(urgent, &priority));
  EXPECT_EQ(greatest, priority);
  OK(cudaStreamGetFlags(urgent, &flags));
  EXPECT_EQ(unsigned{cudaStreamNonBlocking}, flags);
  OK(cudaStreamGetId(urgent, &id));
  OK(cudaStreamGetId(stream_, &other_id));
  EXPECT_NE(id, other_id);
#if CUDART_VERSION >= 12080
  OK(cudaStreamGetDevice(urgent, &device));
  EXPECT_EQ(0, device);
#endif
  OK(cudaStreamDestroy(urgent));
  GIVES(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&urgent, 8));
}

TEST_F(RuntimeRules, CopiesAndFillsOfNothingAreAllowed) {
  misuses_on_purpose = true;
  GIVES(cudaSuccess, cudaMemset(nullptr, 0, 0));
  GIVES(cudaSuccess, cudaMemcpyAsync(device_, device_ + 8, 0, cudaMemcpyDeviceToDevice, stream_));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(nullptr, device_, 4, cudaMemcpyDeviceToDevice));
  GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(device_, device_ + 8, 4, static_cast<cudaMemcpyKind>(7)));
  void* memory = device_;
  GIVES(cudaSuccess, cudaMalloc(&memory, 0));
  EXPECT_EQ(nullptr, memory);
  GIVES(cudaSuccess, cudaFree(nullptr));
  int variable = 0;
  GIVES(cudaErrorInvalidValue, cudaFree(&variable));
}

// Direct, captured, and as a node. Pageable is the heap, a stack and no memory at all.
TEST_F(RuntimeRules, APageableEndThatTheKindOfACopyCallsTheDevicesIsRefused) {
  constexpr std::size_t kBytes = 64;
  std::vector<char> heap(kBytes);
  char local[kBytes] = {};
  void *pinned = nullptr, *managed = nullptr;
  OK(cudaMallocHost(&pinned, kBytes));
  OK(cudaMallocManaged(&managed, kBytes, cudaMemAttachGlobal));
  void* const places[] = {heap.data(), local, device_, pinned, managed};
  constexpr int kPageable = 2;  // the first so many
  for (int to = 0; to < 5; ++to) {
    for (int from = 0; from < 5; ++from) {
      for (int kind = cudaMemcpyHostToHost; kind <= cudaMemcpyDefault; ++kind) {
        SCOPED_TRACE(testing::Message() << to << " from " << from << ", kind " << kind);
        const auto of = static_cast<cudaMemcpyKind>(kind);
        const bool to_device = of == cudaMemcpyHostToDevice || of == cudaMemcpyDeviceToDevice;
        const bool from_device = of == cudaMemcpyDeviceToHost || of == cudaMemcpyDeviceToDevice;
        const bool is_wrong = (to < kPageable && to_device) || (from < kPageable && from_device);
        const cudaError_t wanted = is_wrong ? cudaErrorInvalidValue : cudaSuccess;
        void* const dst = static_cast<char*>(places[to]) + (to == from ? kBytes / 2 : 0);
        const auto copy = [&] { GIVES(wanted, cudaMemcpyAsync(dst, places[from], kBytes / 2, of, stream_)); };
        const auto rows = [&] { GIVES(wanted, cudaMemcpy2DAsync(dst, 8, places[from], 8, 4, 3, of, stream_)); };
        copy();
        rows();
        GIVES(wanted, cudaMemcpy(dst, places[from], kBytes / 2, of));
        capture(copy);
        capture(rows);
        cudaGraph_t graph = make_graph();
        cudaGraphNode_t node = nullptr, other = nullptr;
        GIVES(wanted, cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, dst, places[from], kBytes / 2, of));
        OK(cudaGraphAddMemcpyNode1D(&other, graph, nullptr, 0, device_, device_ + 64, 4, cudaMemcpyDefault));
        GIVES(wanted, cudaGraphMemcpyNodeSetParams1D(other, dst, places[from], kBytes / 2, of));
        OK(cudaStreamSynchronize(stream_));
      }
    }
  }
  OK(cudaFreeHost(pinned));
  OK(cudaFree(managed));
}

TEST_F(RuntimeRules, AFillOfPageableMemoryIsRefusedAndItsCaptureCannotBeInstantiated) {
  std::vector<char> heap(64);
  char local[64] = {};
  for (void* const memory : {static_cast<void*>(heap.data()), static_cast<void*>(local), static_cast<void*>(nullptr)}) {
    GIVES(cudaErrorInvalidValue, cudaMemsetAsync(memory, 1, 16, stream_));
    GIVES(cudaErrorInvalidValue, cudaMemset(memory, 1, 16));
    GIVES(cudaErrorInvalidValue, cudaMemset2DAsync(memory, 16, 1, 4, 3, stream_));
    GIVES(cudaSuccess, cudaMemsetAsync(memory, 1, 0, stream_));
    const cudaGraph_t captured = capture([&] { OK(cudaMemsetAsync(memory, 1, 16, stream_)); });
    cudaGraphExec_t executable = nullptr;
    GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, captured, 0));
    cudaGraph_t graph = make_graph();
    cudaGraphNode_t node = nullptr;
    cudaMemsetParams fill = {memory, 0, 1, 1, 16, 1};
    GIVES(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &fill));
    fill.dst = device_;
    OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &fill));
    executable = instantiate(graph);
    fill.dst = memory;
    GIVES(cudaErrorInvalidValue, cudaGraphMemsetNodeSetParams(node, &fill));
    GIVES(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(executable, node, &fill));
  }
}

// Its address is not the host's, and CUDA knows it only while a launch has allocated it.
TEST_F(RuntimeRules, MemoryOfAnAllocationNodeIsUnknownWhereNoLaunchHasAllocatedIt) {
  void* memory = nullptr;
  const auto expect = [&](cudaMemoryType type) {
    cudaPointerAttributes attributes = {};
    OK(cudaPointerGetAttributes(&attributes, static_cast<char*>(memory) + 8));
    EXPECT_EQ(type, attributes.type);
  };
  for (const bool frees : {true, false}) {
    const cudaGraph_t graph = capture([&] {
      OK(cudaMallocAsync(&memory, 100, stream_));
      expect(cudaMemoryTypeUnregistered);
      OK(launch(add, 1, 1, stream_, static_cast<float*>(memory), 1, 1.0f));
      if (frees) {
        OK(cudaFreeAsync(memory, stream_));
      }
    });
    const cudaGraphExec_t executable = instantiate(graph);
    expect(cudaMemoryTypeUnregistered);
    OK(cudaGraphLaunch(executable, stream_));
    OK(cudaStreamSynchronize(stream_));
    expect(frees ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice);
    if (frees) continue;
    OK(cudaFreeAsync(memory, stream_));
    OK(cudaStreamSynchronize(stream_));
    expect(cudaMemoryTypeUnregistered);
  }
}

TEST_F(RuntimeRules, ManagedMemoryIsTheHostsAndTheDevices) {
  float* managed = nullptr;
  OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 2 * sizeof(float), cudaMemAttachGlobal));
  cudaPointerAttributes attributes = {};
  OK(cudaPointerGetAttributes(&attributes, managed + 1));
  EXPECT_EQ(cudaMemoryTypeManaged, attributes.type);
  EXPECT_EQ(managed + 1, attributes.devicePointer);
  EXPECT_EQ(managed + 1, attributes.hostPointer);
  managed[0] = 3;
  OK(launch(scale, 1, 1, stream_, managed + 1, managed, 1, 2.0f));
  OK(cudaMemcpyAsync(device_, managed + 1, sizeof(float), cudaMemcpyDefault, stream_));
  EXPECT_EQ(6, read());
  EXPECT_EQ(6, managed[1]);
  GIVES(cudaSuccess, cudaFree(managed));
  void* refused = nullptr;
  GIVES(cudaSuccess, cudaMallocManaged(&refused, 0, cudaMemAttachGlobal));  // the manual says otherwise
  GIVES(cudaSuccess, cudaFree(refused));
  GIVES(cudaErrorInvalidValue, cudaMallocManaged(&refused, 64, 0));
}

TEST_F(RuntimeRules, DevicesReportTheirClocksAndKindsOfMemory) {
  int value = 0;
  for (auto attribute :
       {cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrComputeMode, cudaDevAttrConcurrentManagedAccess}) {
    GIVES(cudaSuccess, cudaDeviceGetAttribute(&value, attribute, 0));
  }
  cudaDeviceProp properties = {};
  OK(cudaGetDeviceProperties(&properties, 0));
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrManagedMemory, 0));
  EXPECT_EQ(value, properties.managedMemory);
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrMemoryPoolsSupported, 0));
  EXPECT_EQ(value, properties.memoryPoolsSupported);
}

TEST_F(RuntimeRules, EventsThatWereNeverRecordedAreDone) {
  GIVES(cudaSuccess, cudaEventQuery(fork_));
  GIVES(cudaSuccess, cudaEventSynchronize(fork_));
  GIVES(cudaSuccess, cudaStreamWaitEvent(stream_, fork_, 0));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(nullptr, stream_));
  float ms = -1;
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, fork_, join_));  // without timing
}

// ---- Rows ----

// The rows of a matrix of bytes in device memory, of which each has `pitch` bytes.
class RowRules : public RuntimeRules {
 protected:
  static constexpr std::size_t kPitch = 64, kWidth = 12, kRows = 3;

  void SetUp() override {
    RuntimeRules::SetUp();
    std::vector<unsigned char> bytes(kRows * kPitch);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
    OK(cudaMemcpy(source(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
  }

  unsigned char* target() { return reinterpret_cast<unsigned char*>(device_); }
  unsigned char* source() { return target() + 4096; }

  cudaError_t copy(cudaMemcpyKind kind = cudaMemcpyDeviceToDevice) {
    return cudaMemcpy2DAsync(target(), 2 * kPitch, source(), kPitch, kWidth, kRows, kind, stream_);
  }
  cudaMemcpy3DParms box() {
    cudaMemcpy3DParms box = {};
    box.srcPtr = {source(), kPitch / 2, kPitch / 2, 2};
    box.dstPtr = {target(), kPitch, kPitch, 4};
    box.dstPos = {4, 1, 0};
    box.extent = {kWidth, 2, kRows};
    box.kind = cudaMemcpyDeviceToDevice;
    return box;
  }
  unsigned target_byte(std::size_t at) { return read<unsigned char>(static_cast<int>(at)); }
  void expect_rows() {
    for (std::size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(row * kPitch, target_byte(row * 2 * kPitch)) << row;
      EXPECT_EQ(row * kPitch + kWidth - 1, target_byte(row * 2 * kPitch + kWidth - 1)) << row;
      EXPECT_EQ(0u, target_byte(row * 2 * kPitch + kWidth)) << row;
    }
  }
  void clear_target() {
    OK(cudaMemset(target(), 0, 4096));
    OK(cudaDeviceSynchronize());
  }
};

TEST_F(RowRules, CopiesOfRowsLeaveTheGaps) {
  OK(copy());
  expect_rows();
  clear_target();
  OK(cudaMemcpy2D(target(), 2 * kPitch, source(), kPitch, kWidth, kRows, cudaMemcpyDefault));
  expect_rows();
  unsigned char host[kRows][16] = {};
  OK(cudaMemcpy2D(host, 16, source(), kPitch, kWidth, kRows, cudaMemcpyDeviceToHost));
  EXPECT_EQ(2 * kPitch + kWidth - 1, host[2][kWidth - 1]);
  EXPECT_EQ(0, host[2][kWidth]);
}

TEST_F(RowRules, SetsOfRowsLeaveTheGaps) {
  OK(cudaMemset2DAsync(target(), kPitch, 0x107, kWidth, kRows, stream_));
  for (std::size_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(7u, target_byte(row * kPitch + kWidth - 1));
    EXPECT_EQ(0u, target_byte(row * kPitch + kWidth));
  }
  EXPECT_EQ(0u, target_byte(kRows * kPitch));
}

TEST_F(RowRules, BoxesAreCopiedByRowAndSlice) {
  const cudaMemcpy3DParms params = box();
  OK(cudaMemcpy3DAsync(&params, stream_));
  for (std::size_t slice = 0; slice < kRows; ++slice) {
    for (std::size_t row = 0; row < 2; ++row) {
      const std::size_t at = (slice * 4 + row + 1) * kPitch + 4;
      EXPECT_EQ((slice * 2 + row) * kPitch / 2, target_byte(at));
      EXPECT_EQ((slice * 2 + row) * kPitch / 2 + kWidth - 1, target_byte(at + kWidth - 1));
      EXPECT_EQ(0u, target_byte(at + kWidth));
    }
  }
}

TEST_F(RowRules, ACapturedCopyOfRowsIsANodeThatCannotBePatched) {
  const cudaGraph_t graph = capture([this] { OK(copy()); });
  ASSERT_EQ(std::vector<cudaGraphNodeType>{cudaGraphNodeTypeMemcpy}, types(graph));
  const cudaGraphNode_t node = nodes(graph)[0];
  cudaMemcpy3DParms params = {};
  OK(cudaGraphMemcpyNodeGetParams(node, &params));
  EXPECT_EQ(source(), params.srcPtr.ptr);
  EXPECT_EQ(target(), params.dstPtr.ptr);
  EXPECT_EQ(kWidth, params.extent.width);
  EXPECT_EQ(kRows, params.extent.height);
  const cudaGraphExec_t executable = instantiate(graph);
  GIVES(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams(executable, node, &params));
  GIVES(cudaErrorInvalidValue,
        cudaGraphExecMemcpyNodeSetParams1D(executable, node, target(), source(), kWidth, cudaMemcpyDeviceToDevice));
  clear_target();
  OK(cudaGraphLaunch(executable, stream_));
  expect_rows();
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, capture([this] {
                                                  OK(cudaMemcpy2DAsync(target(), kPitch, source(), kPitch, kWidth,
                                                                       kRows, cudaMemcpyDeviceToDevice, stream_));
                                                })));
}

TEST_F(RowRules, RowsMustNotOverlap) {
  for (const bool of_source : {false, true}) {
    const std::size_t to = of_source ? kPitch : kWidth - 1, from = of_source ? kWidth - 1 : kPitch;
    GIVES(cudaErrorInvalidPitchValue,
          cudaMemcpy2DAsync(target(), to, source(), from, kWidth, kRows, cudaMemcpyDeviceToDevice, stream_));
    GIVES(cudaErrorInvalidPitchValue,
          cudaMemcpy2D(target(), to, source(), from, kWidth, kRows, cudaMemcpyDeviceToDevice));
    // Of a single row the driver says so, after it has looked at the stream.
    const auto one_row = [&] {
      return cudaMemcpy2DAsync(target(), to, source(), from, kWidth, 1, cudaMemcpyDeviceToDevice, stream_);
    };
    GIVES(cudaErrorInvalidValue, one_row());
    begin(stream_, kRelaxed);
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream_));
    GIVES(cudaErrorStreamCaptureInvalidated, one_row());
    end_invalid(stream_);
  }
  const cudaGraph_t graph = make_graph();
  const auto add = [&](const std::function<void(cudaMemcpy3DParms&)>& change) {
    cudaMemcpy3DParms params = box();
    change(params);
    cudaGraphNode_t node = nullptr;
    return cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &params);
  };
  GIVES(cudaSuccess, add([](auto&) {}));
  GIVES(cudaErrorInvalidPitchValue, add([](auto& params) { params.srcPtr.pitch = kWidth - 1; }));
  GIVES(cudaErrorInvalidPitchValue, add([](auto& params) { params.dstPtr.ysize = 1; }));
  GIVES(cudaErrorInvalidValue, add([](auto& params) {
          params.dstPtr.ysize = 1;
          params.extent.depth = 1;
        }));
  GIVES(cudaErrorInvalidValue, add([](auto& params) { params.extent.depth = 0; }));
  GIVES(cudaErrorInvalidValue, cudaMemset2DAsync(target(), kWidth - 1, 1, kWidth, kRows, stream_));
  GIVES(cudaErrorInvalidMemcpyDirection, copy(static_cast<cudaMemcpyKind>(7)));
  GIVES(cudaSuccess, cudaMemcpy2DAsync(target(), kPitch, source(), kPitch, 0, kRows, cudaMemcpyDefault, stream_));
  GIVES(cudaSuccess, cudaMemcpy2DAsync(target(), kPitch, source(), kPitch, kWidth, 0, cudaMemcpyDefault, stream_));
  GIVES(cudaSuccess, cudaMemset2DAsync(target(), kPitch, 1, 0, kRows, stream_));
  EXPECT_EQ(0u, target_byte(0));
}

// ---- Kernels and errors ----

TEST_F(RuntimeRules, LargeSharedMemoryIsOptedInTo) {
  const auto* const kernel = reinterpret_cast<const void*>(record_shared_bytes);
  constexpr int kDefault = 48 << 10, kWanted = 64 << 10;
  const auto launch_with = [&](int bytes) {
    int* out = ints();
    void* arguments[] = {&out};
    return cudaLaunchKernel(kernel, 1, 1, arguments, static_cast<std::size_t>(bytes), stream_);
  };
  GIVES(cudaSuccess, launch_with(kDefault));
  GIVES(cudaErrorInvalidValue, launch_with(kDefault + 16));
  int most = 0;
  OK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  const auto allow = [&](int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  GIVES(cudaErrorInvalidValue, allow(most + 1));
  GIVES(cudaErrorInvalidValue, cudaPeekAtLastError());
  GIVES(cudaSuccess, allow(kWanted));
  GIVES(cudaSuccess, cudaPeekAtLastError());  // It forgets the last error.
  GIVES(cudaSuccess, launch_with(kWanted));
  GIVES(cudaErrorInvalidValue, launch_with(kWanted + 16));
  cudaFuncAttributes attributes = {};
  OK(cudaFuncGetAttributes(&attributes, kernel));
  EXPECT_EQ(kWanted, attributes.maxDynamicSharedSizeBytes);
  GIVES(cudaSuccess, allow(kDefault));
}

TEST_F(RuntimeRules, PeersCopyOutsideOfCaptures) {
  int devices = 0, can = -1;
  OK(cudaGetDeviceCount(&devices));
  GIVES(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&can, 0, devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  GIVES(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(0, can);
  GIVES(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 1));
  if (can == 0) GTEST_SKIP() << "needs two devices that are peers";
  GIVES(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(devices, 0));
  GIVES(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(1, 1));
  GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
  GIVES(cudaSuccess, cudaDeviceEnablePeerAccess(1, 0));
  GIVES(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  float* there = nullptr;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(reinterpret_cast<void**>(&there), sizeof *there));
  OK(cudaSetDevice(0));
  // There and back, into the second element.
  const auto round_trip = [&] {
    OK(cudaMemcpyPeerAsync(there, 1, device_, 0, sizeof *there, stream_));
    OK(cudaMemcpyPeerAsync(device_ + 1, 0, there, 1, sizeof *there, stream_));
  };
  OK(put(3, stream_));
  round_trip();
  EXPECT_EQ(3, read(1));
  begin(stream_, kThreadLocal);
  GIVES(cudaErrorStreamCaptureUnsupported, cudaMemcpyPeerAsync(device_, 0, there, 1, sizeof *there, stream_));
  end_invalid(stream_);
  const cudaGraph_t graph = capture([&] {
    OK(put(4, stream_));
    OK(cudaMemcpyAsync(there, device_, sizeof *there, cudaMemcpyDefault, stream_));
    OK(cudaMemcpyAsync(device_ + 1, there, sizeof *there, cudaMemcpyDefault, stream_));
  });
  EXPECT_EQ(4, run(instantiate(graph)));
  EXPECT_EQ(4, read(1));
  const float five = 5;
  OK(cudaMemcpy(there, &five, sizeof five, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidDevice, cudaMemcpyPeer(device_, 0, there, devices, sizeof *there));
  GIVES(cudaSuccess, cudaMemcpyPeer(device_, 0, there, 1, sizeof *there));
  EXPECT_EQ(5, read());
  GIVES(cudaSuccess, cudaDeviceDisablePeerAccess(1));
  OK(cudaFree(there));
}

TEST_F(RuntimeRules, EventsAndCapturesAcrossDevices) {
  int devices = 0;
  OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  cudaStream_t there = nullptr;
  cudaEvent_t here_event = nullptr, there_event = nullptr;
  OK(cudaEventCreate(&here_event));
  OK(cudaEventRecord(here_event, stream_));
  OK(cudaSetDevice(1));
  OK(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking));
  OK(cudaEventCreate(&there_event));
  OK(cudaEventRecord(there_event, there));
  OK(cudaStreamSynchronize(there));
  OK(cudaStreamSynchronize(stream_));
  float milliseconds = 0;
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, here_event, there_event));
  OK(cudaSetDevice(0));
  begin(stream_, kThreadLocal);
  OK(cudaEventRecord(fork_, stream_));
  OK(cudaStreamWaitEvent(there, fork_, 0));
  // A wait for the other device breaks the capture that forks there.
  GIVES(cudaErrorStreamCaptureUnsupported, on_other_thread([] {
          const cudaError_t error = cudaSetDevice(1);
          return error != cudaSuccess ? error : cudaDeviceSynchronize();
        }));
  end_invalid(stream_);
  OK(cudaStreamDestroy(there));
  for (cudaEvent_t event : {here_event, there_event}) OK(cudaEventDestroy(event));
}

TEST_F(RuntimeRules, ErrorsHaveNamesAndTexts) {
  const struct {
    cudaError_t error;
    const char *name, *text;
  } known[] = {
      {cudaSuccess, "cudaSuccess", "no error"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
      {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
      {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
      {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
       "operation not permitted when stream is capturing"},
      {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
      {static_cast<cudaError_t>(12345), "unrecognized error code", "unrecognized error code"},
  };
  for (const auto& one : known) {
    EXPECT_STREQ(one.name, cudaGetErrorName(one.error));
    EXPECT_STREQ(one.text, cudaGetErrorString(one.error));
  }
}

}  // namespace
}  // namespace graphcache::test
