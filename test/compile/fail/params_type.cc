// expect: graphcache: argument 2 of params.* must be trivially copyable
#include <graphcache/graphcache.h>

#include <utility>

auto values(int count, std::pair<int, float> pair) {
#ifdef FIXED
  return graphcache::params(count, pair.first, pair.second);
#else
  return graphcache::params(count, pair);
#endif
}
