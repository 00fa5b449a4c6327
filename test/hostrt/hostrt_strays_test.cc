// Work that a thread enqueues on other streams while it is capturing: hostrt::strays().

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <thread>

#include "hostrt_support.h"

namespace graphcache::test {
namespace {

class HostrtStrays : public HostrtLogTest {
 protected:
  // Expects one more stray, with these words as its first line.
  void expect_stray(const std::string& words) {
    EXPECT_EQ(++expected_, hostrt::strays());
    const std::string message = hostrt::last_stray();
    EXPECT_EQ(words, message.substr(0, message.find('\n')));
  }

  std::uint64_t expected_ = 0;
};

TEST_F(HostrtStrays, AKernelOnAnotherStreamIsNamed) {
  capture([&] {
    OK(write(1, stream_));
    EXPECT_EQ(0u, hostrt::strays());
    EXPECT_EQ("", hostrt::last_stray());
    OK(write(2, nullptr));
    expect_stray(
        "kernel graphcache::test::append was launched on stream 0 while this thread captures another stream: it runs "
        "now and never again");
    EXPECT_NE(std::string::npos, hostrt::last_stray().find("\n  here: cudaLaunchKernel, call "));
    OK(write(3, cudaStreamPerThread));
    expect_stray(
        "kernel graphcache::test::append was launched on cudaStreamPerThread while this thread captures another "
        "stream: it runs now and never again");
  });
  EXPECT_EQ((Values{2, 3}), taken());
  hostrt::reset();
  EXPECT_EQ(0u, hostrt::strays());
  EXPECT_EQ("", hostrt::last_stray());
}

TEST_F(HostrtStrays, WorkOfEveryKindIsCounted) {
  const cudaGraphExec_t graph = instantiate(capture_values({1}));
  int from = 1, to = 0;
  void* memory = nullptr;
  pin(to);
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  std::ostringstream rest;
  rest << " was called on stream " << static_cast<const void*>(other_)
       << " while this thread captures another stream: its work runs now and never again";
  OK(cudaGraphLaunch(graph, other_));
  expect_stray("cudaGraphLaunch" + rest.str());
  OK(cudaMemcpyAsync(&to, &from, sizeof to, cudaMemcpyDefault, other_));
  expect_stray("cudaMemcpyAsync" + rest.str());
  OK(cudaMemsetAsync(&to, 0, sizeof to, other_));
  expect_stray("cudaMemsetAsync" + rest.str());
  OK(cudaLaunchHostFunc(other_, no_call, nullptr));
  expect_stray("cudaLaunchHostFunc" + rest.str());
  OK(cudaMallocAsync(&memory, 64, other_));
  expect_stray("cudaMallocAsync" + rest.str());
  OK(cudaFreeAsync(memory, other_));
  expect_stray("cudaFreeAsync" + rest.str());
  OK(cudaMalloc(&memory, 64));
  OK(cudaMemcpy(memory, &from, sizeof from, cudaMemcpyDefault));
  expect_stray(
      "cudaMemcpy was called on stream 0 while this thread captures another stream: its work runs now and never again");
  OK(cudaMemset(memory, 0, 64));
  ++expected_;
  EXPECT_EQ(expected_, hostrt::strays());
}

TEST_F(HostrtStrays, OtherWorkIsNotAStray) {
  OK(write(1, other_));  // no stream is capturing
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  OK(write(2, stream_));
  OK(cudaEventRecord(event_, stream_));
  OK(cudaStreamWaitEvent(other_, event_, 0));
  OK(write(3, other_));  // a forked stream is part of the capture
  OK(cudaEventRecord(event_, other_));
  OK(cudaStreamWaitEvent(stream_, event_, 0));
  std::thread([&] { EXPECT_EQ(cudaSuccess, write(4, nullptr)); }).join();  // that thread is not capturing
  GIVES(cudaErrorInvalidValue, launch(append, 0, 1, nullptr, log_, &count_, 5));
  OK(cudaMemsetAsync(log_, 0, 0, nullptr));
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream_));
  OK(write(6, nullptr));  // the capture is invalid, so it will return no graph
  GIVES(cudaErrorStreamCaptureInvalidated, end_of_capture_error(stream_));
  EXPECT_EQ(0u, hostrt::strays()) << hostrt::last_stray();
}

TEST_F(HostrtStrays, TwoCapturesOfOneThreadDoNotMakeStrays) {
  OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  OK(cudaStreamBeginCapture(other_, cudaStreamCaptureModeRelaxed));
  OK(write(1, stream_));
  OK(write(2, other_));
  EXPECT_EQ(0u, hostrt::strays());
}

}  // namespace
}  // namespace graphcache::test
