// Every runtime call of a cache fails, once and for ever, with each error that it can return. The work is then done in
// another way, or the operation returns an error that describes the failure. Nothing is lost, and later operations work
// (laws 1 to 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "faults.h"
#include "graphcache/status.h"
#include "size.h"

namespace graphcache::test {
namespace {

// Errors after which there is no context (fact 32), by number, because older headers do not name all of them.
constexpr int kFatal[] = {3, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};

// Other errors that a function may return, by its documentation and docs/semantics.md. Any function may return the
// first three, and errors that the headers do not know yet.
std::vector<cudaError_t> errors_of(const std::string& function) {
  static const std::map<std::string, std::vector<cudaError_t>> table{
      {"cudaGetDevice", {cudaErrorDevicesUnavailable}},
      {"cudaSetDevice", {cudaErrorInvalidDevice, cudaErrorDeviceAlreadyInUse, cudaErrorDevicesUnavailable}},
      {"cudaGetDeviceCount", {cudaErrorNoDevice, cudaErrorInsufficientDriver}},
      {"cudaMalloc", {cudaErrorStreamCaptureUnsupported}},
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
      {"cudaGraphKernelNodeSetAttribute", {cudaErrorNotSupported}},
      {"cudaLibraryGetKernel", {cudaErrorSymbolNotFound}},
      {"cudaLibraryLoadData",
       {cudaErrorInvalidKernelImage, cudaErrorNoKernelImageForDevice, cudaErrorInvalidPtx,
        cudaErrorSharedObjectInitFailed}},
      {"cudaPointerGetAttributes", {cudaErrorInvalidDevice}},
  };
  std::vector<cudaError_t> errors{cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorUnknown};
  // The library treats it like the last one.
  if (size() != Size::kBrief) errors.push_back(static_cast<cudaError_t>(998));
  if (const auto more = table.find(function); more != table.end()) {
    errors.insert(errors.end(), more->second.begin(), more->second.end());
  }
  return errors;
}

using Names = std::vector<std::string>;

// Calls whose fatal error a run may not report. The context stays lost, so the next important call reports it.
struct Unreported {
  Names functions;
  Names scenarios = {};  // none for all scenarios
  int from = 1;          // number of the first such call
};
const Names kErasures = {"erase", "erase in flight", "erase of a table's holder"};
const Names kEnds = {"clear", "destruction", "destruction in flight", "destruction of a condition",
                     "destruction of a table"};
const Names kOtherEnds = {"destruction of a table in flight", "destruction of pointed values",
                          "destruction of pointed values in flight"};
const Names kExceptions = {"fn throws", "fn runs out of memory"};
const Unreported kUnreported[] = {
    // Queries about a capture's contents: a graph that cannot be described is not shared.
    {{"cudaFuncGetParamInfo", "cudaGraphKernelNodeGetAttribute", "cudaGraphKernelNodeGetParams",
      "cudaGraphMemcpyNodeGetParams", "cudaGraphMemsetNodeGetParams", "cudaGraphNodeGetDependencies",
      "cudaGraphNodeGetType", "cudaKernelGetFunction", "cudaPointerGetAttributes"}},
    // Nothing can be done about an object that cannot be destroyed.
    {{"cudaEventDestroy", "cudaFree", "cudaFreeAsync", "cudaFreeHost", "cudaGraphDestroy", "cudaGraphExecDestroy",
      "cudaLibraryUnload", "cudaStreamDestroy"}},
    // Queries whether something may be destroyed: if they fail, it is kept.
    {{"cudaEventCreateWithFlags", "cudaEventQuery", "cudaEventRecord"}},
    // The instantiation that this makes room for is tried in any case.
    {{"cudaDeviceGraphMemTrim", "cudaThreadExchangeStreamCaptureMode"}},
    // Restores the caller's device after the work.
    {{"cudaSetDevice"},
     {"second device", "table on a second device", "cold with a condition, on a second device",
      "switch by a row on a second device"},
     2},
    {{"cudaStreamQuery", "cudaStreamSynchronize", "cudaGraphUpload", "cudaStreamCreateWithFlags", "cudaGetDevice"},
     kErasures},
    {{"cudaGetDevice"}, {"erase of a table's member"}},
    // A query whether the context is still the cache's: if it fails, nothing is destroyed.
    {{"cudaCtxGetId"}, kErasures},
    {{"cudaCtxGetId"}, {"erase of a table's member"}},
    {{"cudaCtxGetId"}, {"fn erases"}, 2},
    {{"cudaCtxGetId"}, kEnds},
    {{"cudaCtxGetId"}, kOtherEnds, 2},
    // This waits for the device.
    {{"cudaMalloc"}, kEnds},
    {{"cudaMalloc"}, kOtherEnds},
    {{"cudaGetDevice"}, kEnds},
    {{"cudaGetDevice"}, kOtherEnds, 2},
    // The scenario's own failure replaces this call's result.
    {{"cudaGraphExecUpdate"}, {"refused update"}},
    {{"cudaGraphKernelNodeSetAttribute"}, {"table without its binary"}},
    {{"cudaMalloc"}, {"row without memory"}},
    // Such a run always ends with the exception of fn.
    {{"cudaGetDevice"}, kExceptions, 3},
    {{"cudaStreamEndCapture", "cudaStreamGetCaptureInfo"}, kExceptions},
};

bool may_stay_unreported(const Scenario& scenario, const std::string& function, int nth) {
  const auto has = [](const Names& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return std::any_of(std::begin(kUnreported), std::end(kUnreported), [&](const Unreported& one) {
    return has(one.functions, function) && (one.scenarios.empty() || has(one.scenarios, scenario.name)) &&
           nth >= one.from;
  });
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
  const auto reported = std::find_if(world->attempts.begin(), world->attempts.end(),
                                     [&](const World::Attempt& made) { return cuda_error(made.status) == error; });
  if (!world->is_held) world->expect_attempts();  // what was in flight is lost
  if (reported == world->attempts.end()) {
    EXPECT_TRUE(may_stay_unreported(scenario, function, nth)) << "no attempt reported it";
    return;
  }
  EXPECT_FALSE(is_capturing(world->on()));
  // If a node cannot be read, the run goes on without what it would be read for.
  const bool is_reading = function == "cudaFuncGetParamInfo" || function == "cudaGraphKernelNodeGetParams";
  if (!scenario.may_destroy && !is_reading) {
    EXPECT_EQ(destructions(), 0u);
  }

  if (scenario.ends) return;
  // A cache that has not found its device looks for it again in its next run.
  const char* const looks[] = {"cudaGetDeviceCount", "cudaStreamIsCapturing", "cudaStreamGetDevice", "cudaGetDevice"};
  const bool is_look = nth == 1 && std::find(std::begin(looks), std::end(looks), function) != std::end(looks);
  if (is_look && scenario.prepared.empty()) return;

  const std::uint64_t destroyed = destructions();
  const int calls = world->calls;
  const auto first = static_cast<std::size_t>(reported - world->attempts.begin());
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

class FaultsInRunsTest : public FaultsTest {
 protected:
  // The driver's functions are looked up once per process, and must not be looked up in the operation that should fail.
  static void SetUpTestSuite() { calls_of(*scenarios().front()); }
};

TEST_F(FaultsInRunsTest, EveryCallMayFailOnceOrForEverWithEachErrorItGives) {
  // In brief, each call of a function behind the first few fails in one of the ways, in turn: loops make them.
  const int few = by_size(3, std::numeric_limits<int>::max(), std::numeric_limits<int>::max());
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      const std::vector<cudaError_t> errors = errors_of(function);
      const int ways = 2 * static_cast<int>(errors.size());
      int way = 0;
      for (const cudaError_t error : errors) {
        for (const int times : {1, -1}) {
          bool struck = true;
          ++way;
          // More calls than were counted, because a failure may lead to additional ones.
          for (int nth = 1; struck || nth <= static_cast<int>(count); ++nth) {
            if (nth > few && nth <= static_cast<int>(count) && nth % ways != way % ways) continue;
            SCOPED_TRACE(std::string(scenario->name) + ": call " + std::to_string(nth) + (times == 1 ? "" : " and on") +
                         " of " + function + " fails with " + cudaGetErrorName(error));
            FailedCall fault(function, nth, error, times);
            struck = fail_and_recover(*scenario, fault);
            EXPECT_TRUE(struck || nth > static_cast<int>(count)) << "nothing failed";
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
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
        FailedCall first(all[i].first, all[i].second, cudaErrorMemoryAllocation, 1, /*reported_in_part=*/true);
        FailedCall second(all[j].first, all[j].second, cudaErrorUnknown, 1, /*reported_in_part=*/true);
        TwoFaults both(first, second);
        EXPECT_TRUE(fail_and_recover(*scenario, both)) << "nothing failed";
      }
    }
  }
}

TEST_F(FaultsInRunsTest, FatalErrorsOfEveryCallAreReportedFromThenOnAndNothingIsDestroyed) {
  // Once the library knows them for fatal, they are all one to it: in brief, each call fails with the next of them.
  const std::size_t all = std::size(kFatal);
  const std::size_t errors = by_size<std::size_t>(1, all, all);
  std::size_t next = 0;
  for (const auto& scenario : scenarios()) {
    for (const auto& [function, count] : calls_of(*scenario)) {
      for (int nth = 1; nth <= static_cast<int>(count); ++nth) {
        for (std::size_t i = 0; i < errors; ++i) {
          const int code = kFatal[next++ % all];
          const auto error = static_cast<cudaError_t>(code);
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
