// The version of the headers, by semantic versioning (docs/releasing.md). Before 1.0 a minor version may break
// compatibility. The version is defined here only: the build and the packages read these three numbers.
#pragma once

#define GRAPHCACHE_VERSION_MAJOR 0
#define GRAPHCACHE_VERSION_MINOR 3
#define GRAPHCACHE_VERSION_PATCH 0

#define GRAPHCACHE_VERSION_JOINED_(major, minor, patch) #major "." #minor "." #patch
#define GRAPHCACHE_VERSION_JOIN_(major, minor, patch) GRAPHCACHE_VERSION_JOINED_(major, minor, patch)
#define GRAPHCACHE_VERSION_STRING \
  GRAPHCACHE_VERSION_JOIN_(GRAPHCACHE_VERSION_MAJOR, GRAPHCACHE_VERSION_MINOR, GRAPHCACHE_VERSION_PATCH)

namespace graphcache {

inline constexpr char kVersion[] = GRAPHCACHE_VERSION_STRING;  // For example "0.3.0".

}  // namespace graphcache
