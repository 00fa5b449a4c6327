// Included before each file of the library if the build option structure_checks is set: a call of a cache ends with a
// check of its structures, or one of several if it has many entries.
#pragma once

#include <memory>

namespace graphcache {

void check_after_call(void* core);  // checks.cc

template <class Core>
struct AfterCall {
  explicit AfterCall(const std::unique_ptr<Core>& core) : core(core.get()) {}
  ~AfterCall() { check_after_call(core); }
  Core* operator->() const { return core; }
  Core& operator*() const { return *core; }

  Core* const core;
};

}  // namespace graphcache

#define GRAPHCACHE_CHECKED(core) ::graphcache::AfterCall(core)
