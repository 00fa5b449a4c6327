// explain(): why a key does what it does, in sentences.
//
//   log(graphcache::explain(cache, graphcache::key("decode", batch)));
#pragma once

#include <string>

#include "graphcache/key.h"

namespace graphcache {

class Cache;

// Describes the key's entries: what they have, what their last runs did, and why. It says why the key was captured
// again, why it runs directly, whether it shares executables, and how its graph differs from the nearest one with the
// same label. It walks over all entries, as Cache::entries() does, and reads a few graphs, as Cache::graph() does. The
// format may change. Empty if there is no memory for it.
std::string explain(const Cache& cache, const Key& key);

}  // namespace graphcache
