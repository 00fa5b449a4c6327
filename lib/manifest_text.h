// What Cache::manifest() writes and read_manifest() reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {

// The manifest of keys and how often each was run: of the `most` with the most runs, without those that hold an
// address. Throws std::bad_alloc.
std::string manifest_text(std::vector<std::pair<Key, std::uint64_t>> keys, std::size_t most);

}  // namespace graphcache
