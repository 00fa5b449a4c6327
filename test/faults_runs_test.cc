// Every runtime call that a cache makes is made to fail, once and for ever, with each error that it can give: the work
// is then done another way, or the operation returns an error that says what happened; nothing is lost, and what comes
// after works (laws 1 to 4).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "faults.h"
#include "graphcache/status.h"

namespace graphcache::test {
namespace {

// Errors after which there is no context (fact 32); older headers do not name all of them.
constexpr int kFatal[] = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};

// What a function may return besides, by its documentation and docs/semantics.md. Any may return the first three, and
// errors that the headers do not know yet.
std::vector<cudaError_t> errors_of(const std::string& function) {
  static const std::map<std::string, std::vector<cudaError_t>> table{
      {"cudaGetDevice", {cudaErrorDevicesUnavailable}},
      {"cudaSetDevice", {cudaErrorInvalidDevice, cudaErrorDeviceAlreadyInUse, cudaErrorDevicesUnavailable}},
      {"cudaGetDeviceCount", {cudaErrorNoDevice, cudaErrorInsufficientDriver}},
      {"cudaMalloc", {cudaErrorStreamCaptureUnsupported, cudaErrorExternalDevice}},
      {"cudaStreamIsCapturing", {cudaErrorStreamCaptureImplicit, cudaErrorInvalidResourceHandle}},
      {"cudaStreamGetDevice", {cudaErrorStreamCaptureUnsupported, cudaErrorInvalidResourceHandle}},
      {"cudaStreamBeginCapture", {cudaErrorIllegalState, cudaErrorStreamCaptureUnsupported}},
      {"cudaStreamEndCapture",
       {cudaErrorStreamCaptureInvalidated, cudaErrorStreamCaptureUnjoined, cudaErrorStreamCaptureUnmatched,
        cudaErrorStreamCaptureWrongThread, cudaErrorStreamCaptureIsolation}},
      {"cudaStreamGetCaptureInfo", {cudaErrorStreamCaptureImplicit, cudaErrorLossyQuery}},
      {"cudaEventCreateWithFlags", {cudaErrorLaunchOutOfResources}},
      {"cudaEventRecord", {cudaErrorInvalidResourceHandle, cudaErrorStreamCaptureUnsupported}},
      {"cudaEventQuery", {cudaErrorNotReady, cudaErrorStreamCaptureUnsupported, cudaErrorCapturedEvent}},
      {"cudaLaunchKernel",
       {cudaErrorInvalidDeviceFunction, cudaErrorInvalidConfiguration, cudaErrorLaunchOutOfResources,
        cudaErrorSharedObjectInitFailed, cudaErrorInvalidPtx, cudaErrorNoKernelImageForDevice,
        cudaErrorStreamCaptureInvalidated}},
      {"cudaMemcpyAsync", {cudaErrorInvalidMemcpyDirection, cudaErrorStreamCaptureUnsupported}},
      {"cudaMemsetAsync", {cudaErrorStreamCaptureImplicit}},
      {"cudaGetFuncBySymbol", {cudaErrorInvalidDeviceFunction}},
      {"cudaGraphInstantiate", {cudaErrorNotSupported}},
      {"cudaGraphLaunch",
       {cudaErrorLaunchOutOfResources, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated}},
      {"cudaGraphExecUpdate", {cudaErrorGraphExecUpdateFailure, cudaErrorNotSupported}},
      {"cudaGraphExecKernelNodeSetParams",
       {cudaErrorInvalidDeviceFunction, cudaErrorInvalidResourceHandle, cudaErrorLaunchOutOfResources,
        cudaErrorInvalidClusterSize}},
      {"cudaGraphExecMemcpyNodeSetParams1D", {cudaErrorInvalidResourceHandle, cudaErrorNotSupported}},
      {"cudaGraphExecMemsetNodeSetParams", {cudaErrorInvalidResourceHandle, cudaErrorNotSupported}},
      {"cudaGraphKernelNodeGetParams", {cudaErrorInvalidDeviceFunction}},
      {"cudaGraphKernelNodeGetAttribute", {cudaErrorNotSupported}},
      {"cudaPointerGetAttributes", {cudaErrorInvalidDevice}},
  };
  std::vector<cudaError_t> errors{cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorInitializationError,
                                  cudaErrorUnknown, static_cast<cudaError_t>(998)};
  if (const auto more = table.find(function); more != table.end()) {
    errors.insert(errors.end(), more->second.begin(), more->second.end());
  }
  std::erase_if(errors, [](cudaError_t error) { return error == cudaErrorExternalDevice; });
  return errors;
}

std::uint64_t destructions() { return hostrt::calls("cudaGraphExecDestroy") + hostrt::calls("cudaGraphDestroy"); }

void expect_lost(const Scenario& scenario, const std::string& function, int nth, cudaError_t error) {
  hostrt::reset();
  const std::unique_ptr<World> world = scenario.make_world();
  FailedCall fault(function, nth, error, -1);
  fault.arm();
  hostrt::reset_calls();
  scenario.operate_on(*world);
  hostrt::clear_failures();
  if (scenario.after) scenario.after(*world);
  const auto told = std::find_if(world->attempts.begin(), world->attempts.end(),
                                 [&](const World::Attempt& made) { return cuda_error(made.status) == error; });
  if (told == world->attempts.end()) return;  // Of a call whose failure does no harm.
  EXPECT_TRUE(fault.told(told->status, scenario));
  world->expect_attempts();
  EXPECT_FALSE(is_capturing(world->on()));
  if (!scenario.may_destroy) {
    EXPECT_EQ(destructions(), 0u);
  }

  if (scenario.ends) return;

  const std::uint64_t destroyed = destructions();
  const int calls = world->calls;
  const auto first = static_cast<std::size_t>(told - world->attempts.begin());
  for (const Work* work : {&scenario.mine, &scenario.other, &scenario.mine}) {
    world->attempt(*work, 1);
    world->warm(*work, 1);
  }
  for (std::size_t i = first; i < world->attempts.size(); ++i) {
    EXPECT_EQ(cuda_error(world->attempts[i].status), error) << world->attempts[i].status;
  }
  EXPECT_EQ(cuda_error(world->cache->status()), error) << world->cache->status();
  EXPECT_EQ(world->calls, calls);
  world->cache->clear();
  EXPECT_EQ(world->cache->stats().live_executables, 0u);
  EXPECT_EQ(world->cache->stats().live_templates, 0u);
  world->cache.reset();
  EXPECT_EQ(destructions(), destroyed);
}

class FaultsInRunsTest : public FaultsTest {};

TEST_F(FaultsInRunsTest, EveryCallMayFailOnceOrForEverWithEachErrorItGives) {
  std::uint64_t tried = 0;
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      for (const cudaError_t error : errors_of(function)) {
        for (const int times : {1, -1}) {
          bool struck = true;
          // Beyond what was counted, too: a failure may lead to calls that were not made before.
          for (int nth = 1; struck || nth <= static_cast<int>(count); ++nth) {
            SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(nth) + (times == 1 ? "" : " and on") +
                         " of " + function + " fails with " + cudaGetErrorName(error));
            FailedCall fault(function, nth, error, times);
            struck = fail_and_recover(*scenario, fault);
            ++tried;
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  RecordProperty("tried", std::to_string(tried));
}

TEST_F(FaultsInRunsTest, TwoCallsMayFail) {
  const int one_of = pairs_to_one();
  int pair = 0;
  for (const auto& scenario : scenarios()) {
    std::vector<std::pair<std::string, int>> all;
    for (const auto& [function, count] : calls_of(*scenario)) {
      for (int nth = 1; nth <= static_cast<int>(count); ++nth) all.emplace_back(function, nth);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = i + 1; j < all.size(); ++j) {
        if (++pair % one_of != 0) continue;
        SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(all[i].second) + " of " + all[i].first +
                     " and call " + std::to_string(all[j].second) + " of " + all[j].first + " fail");
        FailedCall first(all[i].first, all[i].second, cudaErrorMemoryAllocation, 1, /*told_in_part=*/true);
        FailedCall second(all[j].first, all[j].second, cudaErrorUnknown, 1, /*told_in_part=*/true);
        TwoFaults both(first, second);
        fail_and_recover(*scenario, both);
      }
    }
  }
}

TEST_F(FaultsInRunsTest, FatalErrorsOfEveryCallAreToldForEverAndNothingIsDestroyed) {
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      for (const int code : kFatal) {
        const auto error = static_cast<cudaError_t>(code);
        for (int nth = 1; nth <= static_cast<int>(count); ++nth) {
          SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(nth) + " and on of " + function +
                       " fails with " + std::to_string(code));
          expect_lost(*scenario, function, nth, error);
        }
      }
    }
  }
}

}  // namespace
}  // namespace graphcache::test
