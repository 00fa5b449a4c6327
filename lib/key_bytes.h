// Creates keys from bytes that come from outside of the process.
#pragma once

#include <string_view>

#include "graphcache/key.h"

namespace graphcache {

struct KeyBytes {
  // Reads the bytes of Key::data(). Returns false and leaves `key` unchanged if they do not encode a key. Throws
  // std::bad_alloc.
  static bool read(std::string_view bytes, Key* key);
};

}  // namespace graphcache
