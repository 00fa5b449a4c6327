// The version of the headers, by semantic versioning (docs/releasing.md). Before 1.0 a minor version may change the
// contract. These three numbers are the only place that says it: the build and the packages read them here.
#pragma once

#define GRAPHCACHE_VERSION_MAJOR 0
#define GRAPHCACHE_VERSION_MINOR 1
#define GRAPHCACHE_VERSION_PATCH 0

#define GRAPHCACHE_VERSION_JOINED_(major, minor, patch) #major "." #minor "." #patch
#define GRAPHCACHE_VERSION_JOIN_(major, minor, patch) GRAPHCACHE_VERSION_JOINED_(major, minor, patch)
#define GRAPHCACHE_VERSION_STRING \
  GRAPHCACHE_VERSION_JOIN_(GRAPHCACHE_VERSION_MAJOR, GRAPHCACHE_VERSION_MINOR, GRAPHCACHE_VERSION_PATCH)

namespace graphcache {

inline constexpr char kVersion[] = GRAPHCACHE_VERSION_STRING;  // as in "0.1.0"

}  // namespace graphcache
