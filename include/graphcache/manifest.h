// Warm-up manifest: saves the keys that a program used, so that its next start can make them ready.
//
//   // An entry belongs to its key and to this lambda, so run and warm-up both make their call here.
//   auto decode(graphcache::Cache& cache, std::int64_t batch, bool warms) {
//     const graphcache::Key key = graphcache::key("decode", batch);
//     const auto fn = [batch](cudaStream_t stream) { enqueue_decode(batch, stream); };
//     return warms ? cache.warm(key, fn) : cache.run(key, fn).status();
//   }
//
//   save("keys.txt", graphcache::manifest(cache));                                  // at the end
//
//   auto keys = graphcache::read_manifest(load("keys.txt"));                        // at the next start
//   if (!keys.ok()) log(keys.status());
//   else graphcache::warm_up(*keys, std::chrono::seconds(2), [&](const graphcache::ManifestKey& known) {
//     if (known.label != "decode") return absl::OkStatus();                         // a key of another place
//     return decode(cache, known.parts[1].integer, /*warms=*/true);
//   });
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {

class Cache;

// A text for read_manifest(): the keys that have an executable or a template and have been replayed. At most `most`
// keys are in it, those with the most runs first. Keys that contain an address are left out, because it means nothing
// in another process, and so are keys with parts nested 64 deep. It reads entries as Cache::entries() does. Empty if
// there is no memory for it.
std::string manifest(const Cache& cache, std::size_t most = SIZE_MAX);

// One key of a manifest.
struct ManifestKey {
  Key key;                     // Equal to the key that was used.
  std::string label;           // The key's first text.
  std::string text;            // The whole key in readable form.
  std::vector<KeyPart> parts;  // The parts that it was made from.
  std::uint64_t uses = 0;      // The number of its runs.
};

// Reads the text of manifest(). Returns its keys, those with the most uses first. Returns InvalidArgument, and
// no keys, if the text is damaged, is not a manifest, or was written by an incompatible version of the library.
absl::StatusOr<std::vector<ManifestKey>> read_manifest(absl::string_view text);

// What warm_up() did.
struct WarmUp {
  std::size_t warmed = 0;  // The number of calls of `warm` that returned ok.
  std::size_t failed = 0;  // The number of calls of `warm` that returned an error.
  std::size_t left = 0;    // The number of keys for which there was no time.
  absl::Status error;      // The first error, or ok.
};

// Calls `warm` for one key after the other until `budget` has passed. It may take longer, because it does not interrupt
// a call. After an error it goes on with the next key. If there is a `progress`, it is called after each key with the
// number of keys done and the number of all keys. Exceptions of both functions pass through.
WarmUp warm_up(const std::vector<ManifestKey>& keys, std::chrono::nanoseconds budget,
               const std::function<absl::Status(const ManifestKey&)>& warm,
               const std::function<void(std::size_t done, std::size_t all)>& progress = nullptr);

}  // namespace graphcache
