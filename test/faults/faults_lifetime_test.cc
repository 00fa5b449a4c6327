// Failures when a cache's objects are destroyed, and the caller's state before an operation that fails.
#include <gtest/gtest.h>

#include <string>

#include "faults.h"
#include "graphcache/status.h"

namespace graphcache::test {
namespace {

class FaultsInLifetimeTest : public FaultsTest {};

// When the process exits, the runtime may already be unloaded (fact 34). Then every call fails, even those of the
// last-error slot.
TEST_F(FaultsInLifetimeTest, DestructionWithoutARuntimeIsQuiet) {
  for (const bool in_flight : {false, true}) {
    for (const auto& scenario : scenarios()) {
      SCOPED_TRACE(scenario->name);
      hostrt::reset();
      const std::unique_ptr<World> world = scenario->make_world();
      if (in_flight) world->hold();
      scenario->operate_on(*world);
      hostrt::clear_failures();
      hostrt::fail_call("*", 1, cudaErrorCudartUnloading, -1);
      hostrt::fail_call("cudaGetLastError", 1, cudaErrorCudartUnloading, -1);
      hostrt::fail_call("cudaPeekAtLastError", 1, cudaErrorCudartUnloading, -1);
      world->cache.reset();
      hostrt::clear_failures();
      if (scenario->after) scenario->after(*world);
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    }
  }
}

// An object whose destruction fails is lost, but nothing else.
TEST_F(FaultsInLifetimeTest, FailedDestructionLeavesNothingElseBehind) {
  for (const char* function : {"cudaGraphExecDestroy", "cudaGraphDestroy", "cudaFree", "cudaEventDestroy"}) {
    for (int nth = 1; nth <= 6; ++nth) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(nth));
      hostrt::reset();
      bool struck = false;
      {
        World world(unshared(2));
        for (const int value : {1, 0}) EXPECT_TRUE(world.run(key("first"), value).ok());
        world.hold();
        for (const char* name : {"second", "third", "first"}) EXPECT_TRUE(world.run(key(name), 2).ok());
        hostrt::release(world.stream);
        FailedCall fault(function, nth, cudaErrorUnknown, 1);
        fault.arm();
        EXPECT_TRUE(world.run(key("second"), 3).ok());
        world.cache.reset();
        struck = fault.disarm();
        CUDA_OK(cudaPeekAtLastError());
        world.expect_done({1, 0, 2, 2, 2, 3});
      }
      const hostrt::Ledger left = hostrt::ledger();
      const std::size_t lost = left.executables + left.graphs + left.allocations + left.events;
      EXPECT_EQ(lost, struck ? 1u : 0u);
      if (nth == 1) {
        EXPECT_TRUE(struck);
      }
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    }
  }
}

// An error that the caller has left in the slot stays, whatever call fails. It is lost only if a hit's own launch or
// patch failed (cache.h).
TEST_F(FaultsInLifetimeTest, CallersErrorAndCaptureModeStay) {
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      const bool changes_mode = function == "cudaThreadExchangeStreamCaptureMode";
      for (int nth = 0; nth <= static_cast<int>(count); ++nth) {
        SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(nth) + " of " + function + " fails");
        hostrt::reset();
        const std::unique_ptr<World> world = scenario->make_world();
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(cudaErrorInvalidDevice, cudaSetDevice(99));
        FailedCall fault(function, nth, cudaErrorUnknown, 1);
        if (nth != 0) fault.arm();
        scenario->operate_on(*world);
        hostrt::clear_failures();
        const bool of_a_hit = function == "cudaGraphLaunch" || function.find("NodeSetParams") != std::string::npos;
        const cudaError_t found = cudaGetLastError();
        if (nth == 0 || !of_a_hit) {
          EXPECT_EQ(found, cudaErrorInvalidDevice);
        }
        if (!changes_mode) {
          EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeRelaxed);
        }
        mode = cudaStreamCaptureModeGlobal;
        CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
        if (scenario->after) scenario->after(*world);
      }
    }
  }
}

// Objects of a lost cache are dropped; those of another cache are not.
TEST_F(FaultsInLifetimeTest, LostCacheTakesNoOtherWithIt) {
  World lost(unshared()), other(unshared());
  EXPECT_RUN(kInstantiated, lost.run(kKey, 1));
  EXPECT_RUN(kInstantiated, other.run(kKey, 2));
  hostrt::fail_call("cudaGraphLaunch", 1, cudaErrorIllegalAddress);
  EXPECT_TRUE(typed(lost.run(kKey, 1).status(), "cudaGraphLaunch", cudaErrorIllegalAddress));
  hostrt::clear_failures();
  EXPECT_RUN(kReplayed, other.run(kKey, 2));
  EXPECT_RUN(kPatched, other.run(kKey, 3));
  other.expect_done({2, 2, 3});
  EXPECT_TRUE(other.cache->status().ok());
}

}  // namespace
}  // namespace graphcache::test
