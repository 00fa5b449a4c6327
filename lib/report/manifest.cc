#include "graphcache/manifest.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graphcache/cache.h"
#include "key_bytes.h"  // The one header of the core here: no public function makes a key of bytes.
#include "report/counts.h"
#include "report/manifest_text.h"

namespace graphcache {
namespace {

// The version covers the text and the encoding of keys (detail/key_encoding.h).
constexpr absl::string_view kFirstLine = "graphcache manifest 1\n";
constexpr absl::string_view kLastLine = "checksum ";

std::string checksum_of(absl::string_view text) {
  return absl::StrCat(absl::Hex(KeyBytes::checksum({text.data(), text.size()}), absl::kZeroPad16));
}

absl::Status damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the manifest is damaged: ", what));
}

// Abseil's function for this is deprecated, and the one that replaces it is not in the oldest Abseil that works.
std::string bytes_of_hex(absl::string_view digits) {
  std::string bytes;
  for (; digits.size() >= 2; digits.remove_prefix(2)) {
    int byte = 0;
    if (absl::SimpleHexAtoi(digits.substr(0, 2), &byte)) bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

absl::StatusOr<ManifestKey> read_line(absl::string_view line) {
  // A line has the number of uses and the bytes. The text after them is for people.
  const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  ManifestKey key;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &key.uses)) return damaged(absl::StrCat("a line is: ", line));
  const absl::string_view digits = fields[1];
  const bool is_hex = digits.size() % 2 == 0 && digits.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
  if (!is_hex || !KeyBytes::read(bytes_of_hex(digits), &key.key)) {
    return damaged(absl::StrCat("these bytes are not a key: ", digits));
  }
  key.label = std::string(key.key.label());
  key.text = key.key.to_string();
  key.parts = key.key.parts();
  return key;
}

}  // namespace

std::string manifest_text(std::vector<std::pair<Key, std::uint64_t>> keys, std::size_t most) {
  const auto may_not_leave = [](const std::pair<Key, std::uint64_t>& key) {
    const std::vector<KeyPart> parts = key.first.parts();
    const bool has_address = std::any_of(parts.begin(), parts.end(),
                                         [](const KeyPart& part) { return part.kind == KeyPart::Kind::kAddress; });
    Key same;  // Cannot be read if its graphcache_key() has thrown.
    return has_address || !KeyBytes::read({key.first.data(), key.first.size()}, &same);
  };
  keys.erase(std::remove_if(keys.begin(), keys.end(), may_not_leave), keys.end());
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    const auto bytes = [](const Key& key) { return std::string_view(key.data(), key.size()); };
    return a.second != b.second ? a.second > b.second : bytes(a.first) < bytes(b.first);
  });
  keys.resize(std::min(keys.size(), most));
  std::string text(kFirstLine);
  for (const auto& [key, uses] : keys) {
    absl::StrAppend(&text, uses, " ", absl::BytesToHexString({key.data(), key.size()}), " ", key.to_string(), "\n");
  }
  const std::string checksum = checksum_of(text);
  absl::StrAppend(&text, kLastLine, checksum, "\n");
  return text;
}

std::string manifest(const Cache& cache, std::size_t most) try {
  const auto hash = [](const Key& key) { return key.hash(); };
  std::unordered_map<Key, std::uint64_t, decltype(hash)> uses(0, hash);
  for (const EntryInfo& entry : cache.entries()) {
    if (entry.recorded && hits_of(entry.outcomes) != 0) uses[entry.key] += runs_of(entry.outcomes);
  }
  return manifest_text({uses.begin(), uses.end()}, most);
} catch (const std::bad_alloc&) {
  return "";
}

absl::StatusOr<std::vector<ManifestKey>> read_manifest(absl::string_view text) try {
  constexpr absl::string_view kAnyVersion = "graphcache manifest ";
  if (!absl::StartsWith(text, kAnyVersion)) {
    return absl::InvalidArgumentError("this is not a manifest of graphcache: it does not begin with its name");
  }
  const absl::string_view first_line = text.substr(0, text.find('\n'));
  if (first_line.size() == text.size()) return damaged("its end is missing");
  if (absl::StripSuffix(first_line, "\r") != absl::StripSuffix(kFirstLine, "\n")) {
    return absl::InvalidArgumentError(
        absl::StrCat("another version of graphcache wrote this manifest: it begins with \"",
                     absl::CHexEscape(first_line.substr(0, 64)), "\""));
  }
  const std::size_t end = text.rfind(kLastLine);
  if (end == absl::string_view::npos || text[end - 1] != '\n') return damaged("its end is missing");
  absl::string_view checksum = text.substr(end + kLastLine.size());
  while (absl::ConsumeSuffix(&checksum, "\n")) continue;  // Editors and version control may append empty lines.
  text = text.substr(0, end);
  if (checksum != checksum_of(text)) return damaged("its checksum is wrong");
  std::vector<ManifestKey> keys;
  text.remove_prefix(kFirstLine.size());
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StatusOr<ManifestKey> key = read_line(line);
    if (!key.ok()) return key.status();
    keys.push_back(*std::move(key));
  }
  return keys;
} catch (const std::bad_alloc&) {
  return absl::Status(absl::StatusCode::kResourceExhausted, "");  // A message would take memory.
}

WarmUp warm_up(const std::vector<ManifestKey>& keys, std::chrono::nanoseconds budget,
               const std::function<absl::Status(const ManifestKey&)>& warm,
               const std::function<void(std::size_t done, std::size_t all)>& progress) {
  WarmUp done;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (std::chrono::steady_clock::now() - begin >= budget) {
      done.left = keys.size() - i;
      break;
    }
    absl::Status status = warm(keys[i]);
    ++(status.ok() ? done.warmed : done.failed);
    done.error.Update(std::move(status));
    if (progress) progress(i + 1, keys.size());
  }
  return done;
}

}  // namespace graphcache
