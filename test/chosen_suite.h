// A program has the suites of several files. Called NAME_test, NAME_counted or NAME_test_gpu, it runs those of
// NAME_test.cc, except suites ...OnHostrt on a GPU, and ...OnGpu on hostrt.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "on_gpu.h"

namespace graphcache::test {

inline std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

inline bool is_disabled(std::string_view name) { return name.substr(0, 9) == "DISABLED_"; }
inline bool is_of_other_runtime(std::string_view suite) { return suite.ends_with(kOnGpu ? "OnHostrt" : "OnGpu"); }

// The enabled tests that a program of this name runs: all, unless it is called after a file.
inline std::vector<const testing::TestInfo*> tests_of(std::string_view program) {
  program = base_name(program);
  for (const std::string_view end : {"_gpu", "_test", "_counted"}) {
    if (program.ends_with(end)) program.remove_suffix(end.size());
  }
  const std::string file = std::string(program) + "_test.cc";
  std::vector<const testing::TestInfo*> all, of_file;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *tests.GetTestSuite(s);
    if (is_of_other_runtime(suite.name())) continue;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (is_disabled(suite.name()) || is_disabled(test.name())) continue;
      all.push_back(&test);
      if (base_name(test.file()) == file) of_file.push_back(&test);
    }
  }
  return of_file.empty() ? all : of_file;
}

// Call it after InitGoogleTest(). A filter of the caller's has precedence.
inline void choose_suite(std::string_view program) {
  if (GTEST_FLAG_GET(filter) != "*") return;
  std::string chosen;
  for (const testing::TestInfo* test : tests_of(program)) {
    chosen += std::string(test->test_suite_name()) + "." + test->name() + ":";
  }
  GTEST_FLAG_SET(filter, chosen);
}

}  // namespace graphcache::test
