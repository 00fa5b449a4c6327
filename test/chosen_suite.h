// A program has the suites of several files. Called NAME_test, NAME_counted or NAME_test_gpu, it runs those of
// NAME_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace graphcache::test {

inline std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Call it after InitGoogleTest(). A filter of the caller's has precedence, and a program of another name runs all.
inline void choose_suite(std::string_view program) {
  if (GTEST_FLAG_GET(filter) != "*") return;
  program = base_name(program);
  for (const std::string_view end : {"_gpu", "_test", "_counted"}) {
    if (program.ends_with(end)) program.remove_suffix(end.size());
  }
  const std::string file = std::string(program) + "_test.cc";
  std::string chosen;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (base_name(test.file()) == file) chosen += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  if (!chosen.empty()) GTEST_FLAG_SET(filter, chosen);
}

}  // namespace graphcache::test
