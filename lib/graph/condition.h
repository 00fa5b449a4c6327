// The kernels that hand the condition of a conditional node to the driver: names for the device, the host and the twins
// of hostrt.
#pragma once

namespace graphcache::condition {

// (handle, const unsigned* condition, const unsigned** kept): sets what *condition says, and leaves `condition` in
// *kept unless that is null.
inline constexpr char kSetName[] = "graphcache_set_condition";
// (handle, const unsigned* const* kept): sets what **kept says. For the end of a loop's body, whose nodes cannot be
// patched, where the condition is a slot.
inline constexpr char kSetKeptName[] = "graphcache_set_kept_condition";

}  // namespace graphcache::condition
