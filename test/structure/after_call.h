// Included before each file of the library if the build option structure_checks is set: a call of a cache ends with a
// check of its structures.
#pragma once

#include <memory>

namespace graphcache {

void check_after_call(void* impl);  // verify.cc

template <class Impl>
struct AfterCall {
  explicit AfterCall(const std::unique_ptr<Impl>& impl) : impl(impl.get()) {}
  ~AfterCall() { check_after_call(impl); }
  Impl* operator->() const { return impl; }

  Impl* const impl;
};

}  // namespace graphcache

#define GRAPHCACHE_CHECKED(impl) ::graphcache::AfterCall(impl)
