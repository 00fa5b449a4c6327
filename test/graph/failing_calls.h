// Shared by the suites of failing calls on hostrt: a fresh runtime for each test, and a test that is repeated with each
// runtime call of its middle failing.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "graphcache/hostrt.h"

namespace graphcache::test {

// The first member of a fixture, for a hostrt as in a new process. A test need not tidy up after its failures.
struct FreshHostrt {
  FreshHostrt() { hostrt::reset(); }
  ~FreshHostrt() {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    (void)cudaGetLastError();
    hostrt::reset();
  }
};

// A runtime call that is to fail, or the first round of for_each_call(), in which none does.
class FailingCall {
 public:
  FailingCall(std::string function, int nth, std::map<std::string, std::uint64_t>* counted)
      : function_(std::move(function)), nth_(nth), counted_(counted) {}

  std::string to_string() const { return function_ + ", call " + std::to_string(nth_); }

  // From here on calls are counted.
  void begin() const { hostrt::reset_calls(); }
  // From here on, the nth call of the function fails, once or (-1) always.
  void arm(cudaError_t error = cudaErrorUnknown, int how_often = 1) const {
    if (counted_ == nullptr) hostrt::fail_call(function_.c_str(), nth_, error, how_often);
  }
  // Nothing fails any more, and the calls up to here were those that may fail.
  void end() const {
    hostrt::clear_failures();
    if (counted_ != nullptr) *counted_ = hostrt::call_counts();
  }

 private:
  std::string function_;
  int nth_;
  std::map<std::string, std::uint64_t>* counted_;  // Null, except in the first round, which fills it in.
};

// Functions by which the library restores the thread's state. If they fail, it is not restored.
inline const std::set<std::string> kRestoring = {"cudaGetLastError", "cudaPeekAtLastError",
                                                 "cudaThreadExchangeStreamCaptureMode"};

// Calls test(FailingCall) once without a failure, and then for each call that it made, except those of `spared`.
template <class Test>
void for_each_call(const Test& test, const std::set<std::string>& spared = kRestoring) {
  std::map<std::string, std::uint64_t> counted;
  test(FailingCall("", 1, &counted));
  for (const auto& [function, times] : counted) {
    if (spared.count(function) != 0) continue;
    for (int nth = 1; nth <= static_cast<int>(times); ++nth) test(FailingCall(function, nth, nullptr));
  }
}

}  // namespace graphcache::test
