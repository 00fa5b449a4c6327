// Arbitrary manifests: read_manifest() accepts a text or refuses it. Every key that it accepts can be printed, and
// survives a manifest of its own.

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/manifest.h"
#include "input.h"
#include "report/manifest_text.h"
#include "siphash.h"

namespace graphcache::test {
namespace {

// A manifest with hostile lines and a correct checksum.
std::string with_checksum(const std::string& lines) {
  const std::string text = absl::StrCat("graphcache manifest 1\n", lines, "\n");
  return absl::StrCat(text, "checksum ", absl::Hex(siphash13({1, 2}, text.data(), text.size()), absl::kZeroPad16),
                      "\n");
}

void look_at(const std::string& text) {
  const auto keys = read_manifest(text);
  if (!keys.ok()) return;
  for (const ManifestKey& known : *keys) {
    FUZZ_CHECK(known.text == known.key.to_string(), known.text);
    bool has_address = false;
    for (const KeyPart& part : known.parts) has_address = has_address || part.kind == KeyPart::Kind::kAddress;
    const auto again = read_manifest(manifest_text({{known.key, known.uses}}, 1));
    FUZZ_CHECK(again.ok() && again->size() == (has_address ? 0u : 1u), known.text);
    FUZZ_CHECK(has_address || again->front().key == known.key, known.text);
  }
}

}  // namespace
}  // namespace graphcache::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  graphcache::test::look_at(bytes);
  graphcache::test::look_at(graphcache::test::with_checksum(bytes));
  graphcache::test::look_at(
      graphcache::test::with_checksum(absl::StrCat("7 ", absl::BytesToHexString(bytes), " text")));
  return 0;
}
