// The kernels that set the condition of a conditional node. The device code, the host code and hostrt share these
// names.
#pragma once

namespace graphcache::condition {

// (handle, const unsigned* condition, const unsigned** kept): sets the condition to *condition, and stores `condition`
// in *kept unless `kept` is null.
inline constexpr char kSetName[] = "graphcache_set_condition";
// (handle, const unsigned* const* kept): sets the condition to **kept. It runs at the end of a loop's body if the
// condition is a slot, because nodes of a body cannot be patched.
inline constexpr char kSetKeptName[] = "graphcache_set_kept_condition";

}  // namespace graphcache::condition
