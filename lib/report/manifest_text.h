// The text that manifest() writes and read_manifest() reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {

// The manifest of the `most` keys with the most runs, and their numbers of runs. Keys that contain an address are left
// out. Throws std::bad_alloc.
std::string manifest_text(std::vector<std::pair<Key, std::uint64_t>> keys, std::size_t most);

}  // namespace graphcache
