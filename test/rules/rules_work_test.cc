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
  for (const dim3& block : bad_blocks) GIVES(cudaErrorInvalidValue, launch(count_threads, 1, block, stream_, ints()));
  for (const dim3& grid : {dim3(0), dim3(1, 1, 0), dim3(1, 65536)}) {
    GIVES(cudaErrorInvalidValue, launch(count_threads, grid, 1, stream_, ints()));
  }
  void* arguments[] = {nullptr};
  GIVES(cudaErrorInvalidValue,
        cudaLaunchKernel(reinterpret_cast<const void*>(count_threads), 1, 1, arguments, 1 << 20, stream_));
  GIVES(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(nullptr, 1, 1, arguments, 0, stream_));
  static int not_a_kernel;
  GIVES(cudaErrorInvalidResourceHandle, cudaLaunchKernel(&not_a_kernel, 1, 1, arguments, 0, stream_));
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
  clear();
  enqueue();
  EXPECT_EQ(own, read<Number>());
  EXPECT_EQ(7u, read<Number>(1));
  EXPECT_EQ(own, read<Number>(2));
  const cudaGraphExec_t executable = instantiate(capture(enqueue));
  clear();
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(own, read<Number>());
  EXPECT_EQ(7u, read<Number>(1));
  EXPECT_EQ(own, read<Number>(2));
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

}  // namespace
}  // namespace graphcache::test
