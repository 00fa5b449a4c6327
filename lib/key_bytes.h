// Keys out of bytes that come from outside of the process.
#pragma once

#include <string_view>

#include "graphcache/key.h"

namespace graphcache {

struct KeyBytes {
  // Reads what Key::data() gave. False if that is no encoding of a key: then `key` stays. Throws std::bad_alloc.
  static bool read(std::string_view bytes, Key* key);
};

}  // namespace graphcache
