// Bytes of keys that come from outside of the process.
#pragma once

#include <cstdint>
#include <string_view>

#include "graphcache/key.h"

namespace graphcache {

struct KeyBytes {
  // Reads the bytes of Key::data(). Returns false and leaves `key` unchanged if they do not encode a key. Throws
  // std::bad_alloc.
  static bool read(std::string_view bytes, Key* key);
  // The checksum of a text with such bytes. It is the same in all processes.
  static std::uint64_t checksum(std::string_view text);
};

}  // namespace graphcache
