// What Cache::manifest() writes and read_manifest() reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {

// The manifest of keys and how often each was run. Throws std::bad_alloc.
std::string manifest_text(const std::vector<std::pair<Key, std::uint64_t>>& keys);

}  // namespace graphcache
