// The main of every test program. It ends with the line that test/run_suite adds up, which counts test cases: `N
// passed, N failed, N skipped`. If a program built for CUDA (GRAPHCACHE_TEST_CUDA) finds no usable GPU, it says so,
// counts every case as skipped and returns 77, by which Meson detects a skip. The same applies if all cases skip.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>

#include "chosen_suite.h"
#include "misuses.h"
#include "policy/mechanisms.h"

#ifdef GRAPHCACHE_TEST_CUDA
#include <absl/debugging/failure_signal_handler.h>
#include <absl/debugging/symbolize.h>
#include <cuda_runtime_api.h>
#else
#include "graphcache/hostrt.h"
#endif

#ifdef GRAPHCACHE_TEST_CUDA
const bool graphcache::test::kOnGpu = true;
#else
const bool graphcache::test::kOnGpu = false;
#endif

// A suite may define this, to run something before the process uses CUDA.
[[gnu::weak]] void before_cuda();

namespace {

constexpr int kSkipped = 77;

// Why no test can run here, or null.
const char* reason_to_skip() {
#ifdef GRAPHCACHE_TEST_CUDA
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (devices == 0) return "the driver reports no device";
#endif
  return nullptr;
}

void print_closing_line(int passed, int failed, int skipped) {
  std::printf("\n%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  std::fflush(stdout);
}

// Each test begins with caches that serve their keys as they see fit. On hostrt it fails if it has misused the runtime.
class Listener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    graphcache::mechanisms_of_new_caches = {};
    graphcache::test::misuses_on_purpose = false;
#ifndef GRAPHCACHE_TEST_CUDA
    before_ = graphcache::hostrt::misuses();
  }
  void OnTestEnd(const testing::TestInfo&) override {
    using graphcache::hostrt::misuses;
    const bool was_reset = misuses() < before_;
    if (graphcache::test::misuses_on_purpose || misuses() == (was_reset ? 0 : before_)) return;
    ADD_FAILURE() << "misuse of the runtime: " << graphcache::hostrt::last_misuse();
  }

 private:
  std::uint64_t before_ = 0;
#else
  }
#endif
};

}  // namespace

int main(int argc, char** argv) {
  if (before_cuda != nullptr) before_cuda();
#ifdef GRAPHCACHE_TEST_CUDA
  // Prints where a program died, on a machine without a debugger.
  absl::InitializeSymbolizer(argv[0]);
  absl::InstallFailureSignalHandler({});
#else
  graphcache::hostrt::set_device_count(2);  // for tests that need two; suites that reset hostrt have one
#endif
  testing::InitGoogleTest(&argc, argv);
  graphcache::test::choose_suite(argv[0]);
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();

  testing::UnitTest::GetInstance()->listeners().Append(new Listener);
  if (const char* reason = reason_to_skip(); reason != nullptr) {
    std::printf("skipped, no usable GPU: %s\n", reason);
    print_closing_line(0, 0, static_cast<int>(graphcache::test::tests_of(argv[0]).size()));
    return kSkipped;
  }

  const int result = RUN_ALL_TESTS();
  // A failure outside of any case (for example in a suite's set-up) must not end as "0 failed".
  const int failed = tests.failed_test_count();
  print_closing_line(tests.successful_test_count(), failed == 0 && result != 0 ? 1 : failed,
                     tests.skipped_test_count());
  const bool all_skipped = result == 0 && tests.successful_test_count() == 0 && tests.skipped_test_count() > 0;
  return all_skipped ? kSkipped : result;
}
