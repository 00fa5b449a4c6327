// The findings of advise().
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"

namespace graphcache::test {

class AdviceTest : public CacheTest {
 protected:
  static std::vector<FindingKind> kinds(const Cache& cache) {
    std::vector<FindingKind> kinds;
    for (const Finding& finding : advise(cache)) kinds.push_back(finding.kind);
    return kinds;
  }
  static Finding only(const Cache& cache, FindingKind kind) {
    const std::vector<Finding> findings = advise(cache);
    EXPECT_EQ(findings.size(), 1u);
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.kind, kind) << to_string(finding.kind) << ": " << finding.text;
      EXPECT_FALSE(finding.text.empty());
      EXPECT_FALSE(finding.cure.empty());
      if (finding.kind == kind) return finding;
    }
    ADD_FAILURE() << "no finding " << to_string(kind);
    return {};
  }
};

}  // namespace graphcache::test
