// How often a run takes the cache's lock, which all of its keys share. It is found as the lock that Cache::contains()
// takes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <map>

#include "cache_support.h"

namespace {

thread_local bool counts = false;
thread_local std::map<const void*, int>* taken = nullptr;

}  // namespace

// Counts what this thread locks meanwhile.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  if (counts) {
    counts = false;  // The map allocates.
    ++(*taken)[mutex];
    counts = true;
  }
  return lock(mutex);
}

namespace graphcache::test {
namespace {

class LocksTest : public CacheTest {
 protected:
  template <class F>
  static std::map<const void*, int> taken_by(F&& f) {
    std::map<const void*, int> all;
    taken = &all;
    counts = true;
    f();
    counts = false;
    return all;
  }
  // How often f() takes the cache's lock.
  template <class F>
  int taken_by(const Cache& cache, F&& f) {
    const std::map<const void*, int> one = taken_by([&] { (void)cache.contains(key("none")); });
    EXPECT_EQ(one.size(), 1u);
    EXPECT_EQ(one.begin()->second, 1);
    return taken_by(f)[one.begin()->first];
  }
};

TEST_F(LocksTest, ARunTakesTheCachesLockAFewTimes) {
#if GRAPHCACHE_STRUCTURE_CHECKS
  GTEST_SKIP() << "structure checks take it as well";
#endif
  Cache cache(unshared(2));
  (void)run_add(cache, key("first"));  // Begins the cache.
  EXPECT_EQ(taken_by(cache, [&] { EXPECT_RUN(kInstantiated, run_add(cache, key("a"))); }), 5) << "cold";
  EXPECT_EQ(taken_by(cache, [&] { EXPECT_RUN(kReplayed, run_add(cache, key("a"))); }), 0) << "hit";
  EXPECT_EQ(taken_by(cache, [&] { EXPECT_RUN(kInstantiated, run_add(cache, key("b"))); }), 5) << "cold, evicts";
  EXPECT_EQ(taken_by(cache, [&] { EXPECT_RUN(kRestored, run_add(cache, key("first"))); }), 3) << "restored";
  Cache direct(unshared(0));
  EXPECT_EQ(taken_by(direct, [&] { EXPECT_RUN(kEager, run_add(direct, key("a"))); }), 0) << "disabled";
}

}  // namespace
}  // namespace graphcache::test
