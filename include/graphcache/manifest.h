// A warm-up manifest: the keys that earned their place in one run of a program, for its next start.
//
//   save("keys.txt", cache.manifest());                                             // at the end
//
//   auto keys = graphcache::read_manifest(load("keys.txt"));                        // at the next start
//   if (!keys.ok()) log(keys.status());
//   else graphcache::warm_up(*keys, std::chrono::seconds(2), [&](const graphcache::ManifestKey& known) {
//     if (known.label != "decode") return absl::OkStatus();                         // not this place's
//     const std::int64_t batch = known.parts[1].integer;
//     return cache.warm(known.key, stream, [&](cudaStream_t on) { decode(batch, on); });
//   });
//
// The text is versioned, ends with a checksum, and is for programs of this version of the library: another version may
// refuse it. Keys that hold an address are left out, since the address means nothing to another process.
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

struct ManifestKey {
  Key key;                     // Equal to the key that was used.
  std::string label;           // Its first text.
  std::string text;            // All of it, readable.
  std::vector<KeyPart> parts;  // What it was made from.
  std::uint64_t uses = 0;      // How often it was run.
};

// The keys of a manifest, those with the most uses first. InvalidArgument if the text is damaged, is no manifest, or
// was written by another version: then nothing of it is taken.
absl::StatusOr<std::vector<ManifestKey>> read_manifest(absl::string_view text);

struct WarmUp {
  std::size_t warmed = 0;  // Calls of `warm` that returned ok.
  std::size_t failed = 0;  // Calls that returned an error.
  std::size_t left = 0;    // Keys that the time did not suffice for.
  absl::Status error;      // The first error, or ok.
};

// Calls `warm` for one key after the other until `budget` has passed. A call that has begun ends, so it may take
// longer. An error of one key does not keep the others from being warmed. `progress`, if there is one, is called after
// each key with how many are done and how many there are. Exceptions of both pass.
WarmUp warm_up(const std::vector<ManifestKey>& keys, std::chrono::nanoseconds budget,
               const std::function<absl::Status(const ManifestKey&)>& warm,
               const std::function<void(std::size_t done, std::size_t all)>& progress = nullptr);

}  // namespace graphcache
