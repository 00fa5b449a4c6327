// The main of the suites store_*. That of the other suites is linked with a CUDA runtime.
#include <gtest/gtest.h>

#include <cstdio>

#include "chosen_suite.h"

const bool graphcache::test::kOnGpu = false;

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  graphcache::test::choose_suite(argv[0]);
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  std::printf("\n%d passed, %d failed, %d skipped\n", tests.successful_test_count(), tests.failed_test_count(),
              tests.skipped_test_count());
  return result;
}
