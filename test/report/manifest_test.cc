// The manifest: the keys of one run of a program, for its next start. On hostrt.
#include "graphcache/manifest.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "report/manifest_text.h"
#include "siphash.h"

namespace graphcache::test {
namespace {

enum class Layout : std::int8_t { kRows = 1, kNone = -1 };
struct Shape {
  int rows, columns;
};
void graphcache_key(Keyer& keyer, const Shape& shape) { keyer.add(shape.rows, shape.columns); }

std::vector<Key> keys_of_every_kind() {
  return {key(),
          key(0),
          key("decode", 16),
          key(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::uint64_t>::max(), -1),
          key(true, false, Layout::kRows, Layout::kNone),
          key("", std::string("a\0b\n\t\"\\", 7), "\xff\xfe not UTF-8", static_cast<const char*>(nullptr)),
          key(dim3(1, 2, 3), LaunchConfig{dim3(4), dim3(5, 6), 7}),
          key(std::optional<int>(), std::optional<int>(3), std::pair(1, "x"), std::tuple(1, 2, 3)),
          key(std::vector<int>{}, std::vector<bool>{true, false}, std::array<std::string, 2>{"a", "b"}),
          key(Shape{3, 4}, std::vector<Shape>{{1, 2}, {3, 4}}),
          key(std::string(1000, 'x'))};
}

std::vector<std::pair<Key, std::uint64_t>> with_uses(const std::vector<Key>& keys) {
  std::vector<std::pair<Key, std::uint64_t>> all;
  for (const Key& each : keys) all.emplace_back(each, 100 - all.size());
  return all;
}
std::string text_of(const std::vector<Key>& keys) { return manifest_text(with_uses(keys), SIZE_MAX); }

// A manifest of these lines with a correct checksum.
std::string text_of_lines(const std::string& lines) {
  const std::string text = "graphcache manifest 1\n" + lines;
  const std::uint64_t checksum = siphash13({1, 2}, text.data(), text.size());
  return absl::StrCat(text, "checksum ", absl::Hex(checksum, absl::kZeroPad16), "\n");
}

// A manifest of one key with these bytes.
std::string text_of_bytes(const std::string& bytes) {
  std::string line = "1 ";
  for (const char byte : bytes) absl::StrAppend(&line, absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  return text_of_lines(line + " text\n");
}

std::vector<ManifestKey> read(const std::string& text) {
  const auto keys = read_manifest(text);
  EXPECT_TRUE(keys.ok()) << keys.status();
  return keys.value_or(std::vector<ManifestKey>());
}

void expect_refused(const std::string& text, const std::string& why) {
  const auto keys = read_manifest(text);
  ASSERT_FALSE(keys.ok()) << text;
  EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(keys.status().message().find(why), absl::string_view::npos) << keys.status();
}

TEST(KeyPartsTest, PartsAreThoseThatAKeyWasMadeFrom) {
  using Kind = KeyPart::Kind;
  using Parts = std::vector<KeyPart>;
  const auto number = [](std::int64_t value) { return KeyPart{Kind::kInteger, value, ""}; };
  EXPECT_EQ(key().parts(), Parts());
  EXPECT_EQ(key("decode", 16, -5).parts(), (Parts{{Kind::kText, 0, "decode"}, number(16), number(-5)}));
  EXPECT_EQ(key(std::numeric_limits<std::int64_t>::min()).parts(),
            Parts{number(std::numeric_limits<std::int64_t>::min())});
  EXPECT_EQ(key(std::numeric_limits<std::uint64_t>::max()).parts(), Parts{number(-1)});
  EXPECT_EQ(key(true, false, Layout::kNone).parts(),
            (Parts{{Kind::kBool, 1, ""}, {Kind::kBool, 0, ""}, {Kind::kEnum, -1, ""}}));
  EXPECT_EQ(key(dim3(1, 2, 3)).parts(), (Parts{number(1), number(2), number(3)}));
  EXPECT_EQ(key(std::optional<int>(), std::optional<int>(7)).parts(), (Parts{{Kind::kNoValue, 0, ""}, number(7)}));
  EXPECT_EQ(key(Shape{3, 4}, static_cast<const char*>(nullptr)).parts(),
            (Parts{number(3), number(4), {Kind::kNullText, 0, ""}}));
  int place = 0;
  EXPECT_EQ(key(&place).parts(), (Parts{{Kind::kAddress, reinterpret_cast<std::intptr_t>(&place), ""}}));
}

TEST(ManifestTest, KeysOfEveryKindComeBackEqual) {
  const std::vector<Key> keys = keys_of_every_kind();
  const std::vector<ManifestKey> all = read(text_of(keys));
  ASSERT_EQ(all.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(all[i].key, keys[i]);
    EXPECT_EQ(all[i].key.hash(), keys[i].hash());
    EXPECT_EQ(all[i].text, keys[i].to_string());
    EXPECT_EQ(all[i].label, std::string(keys[i].label()));
    EXPECT_EQ(all[i].parts, keys[i].parts());
    EXPECT_EQ(all[i].uses, 100 - i);
  }
}

TEST(ManifestTest, ThoseWithTheMostUsesComeFirst) {
  const std::vector<std::pair<Key, std::uint64_t>> keys{{key("a"), 1}, {key("b"), 30}, {key("c"), 2}, {key("d"), 30}};
  const auto labels = [&](std::size_t most) {
    std::string labels;
    const auto read = read_manifest(manifest_text(keys, most));
    for (const ManifestKey& each : *read) labels += each.label;
    return labels;
  };
  EXPECT_EQ(labels(SIZE_MAX), "bdca");
  EXPECT_EQ(labels(3), "bdc");
  EXPECT_EQ(labels(0), "");
}

TEST(ManifestTest, KeysWithAnAddressAreLeftOut) {
  int place = 0;
  const std::string text =
      text_of({key("a", &place), key("b", nullptr), key("c", std::optional<int*>(&place)), key("d")});
  const std::vector<ManifestKey> keys = read(text);
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys.front().label, "d");
}

TEST(ManifestTest, DamageIsFound) {
  const std::string text = text_of({key("decode", 16), key("decode", 32)});
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ (1u << bit));
      const auto keys = read_manifest(damaged);
      // Only the last newline may be missing.
      ASSERT_FALSE(keys.ok()) << "byte " << i << ", bit " << bit;
      EXPECT_TRUE(absl::IsInvalidArgument(keys.status())) << keys.status();
    }
  }
  // So is a text that was cut.
  for (std::size_t size = 0; size < text.size() - 1; ++size) {
    EXPECT_FALSE(read_manifest(text.substr(0, size)).ok()) << size;
  }
  // Empty lines behind the end are no damage.
  for (const char* end : {"", "\n", "\n\n\n"}) {
    const auto keys = read_manifest(text + end);
    ASSERT_TRUE(keys.ok()) << keys.status();
    EXPECT_EQ(keys->size(), 2u);
  }
  EXPECT_FALSE(read_manifest(text + "\nmore").ok());
}

TEST(ManifestTest, ErrorsDescribeTheFault) {
  expect_refused("", "not a manifest of graphcache");
  expect_refused("{\"json\": 1}\n", "not a manifest of graphcache");
  expect_refused("graphcache manifest 2\nwhatever\n", "another version");
  for (const char* const cut : {"graphcache manifest 1", "graphcache manifest 1\n"}) {
    expect_refused(cut, "its end is missing");
  }
  expect_refused("graphcache manifest 1\r\nchecksum 0000000000000000\r\n", "its checksum is wrong");
  expect_refused("graphcache manifest 1\nchecksum 0000000000000000\n", "its checksum is wrong");
  std::string lines = absl::StrReplaceAll(text_of({key("a")}), {{"\n100", "\nmany"}});
  expect_refused(lines, "its checksum is wrong");
}

TEST(ManifestTest, LinesThatAreNoneAreRefusedThoughTheChecksumIsRight) {
  EXPECT_TRUE(read_manifest(text_of_lines("7 1105 text\n")).ok());
  for (const char* const line :
       {"7", "7 1105", "many 1105 text", "-7 1105 text", "99999999999999999999999 1105 text"}) {
    expect_refused(text_of_lines(std::string(line) + "\n"), std::string("a line is: ") + line);
  }
  expect_refused(text_of_lines("7 110 text\n"), "these bytes are not a key: 110");
  expect_refused(text_of_lines("7 11zz text\n"), "these bytes are not a key: 11zz");
}

TEST(ManifestTest, BytesThatAreNoKeyAreRefused) {
  EXPECT_TRUE(read_manifest(text_of_bytes(std::string())).ok());
  EXPECT_TRUE(read_manifest(text_of_bytes("\x11\x05")).ok());
  const std::string hostile[] = {std::string("\x00", 1),  // no tag
                                 "\x0a",                  // no tag
                                 "\x09",                  // an end mark without a begin
                                 "\x08",                  // a user's type without an end
                                 "\x05",                  // an optional without its value
                                 "\x06\x11\x01",          // two of three integers missing
                                 "\x12\x01",              // an integer of two bytes, one of them missing
                                 "\x1f",                  // an integer of fifteen bytes
                                 "\x61\x05"
                                 "ab",                                    // a text that is too short
                                 "\x68\xff\xff\xff\xff\xff\xff\xff\xff",  // a text of 2^64 - 1 bytes
                                 "\x78\xff\xff\xff\xff\xff\xff\xff\xff",  // a sequence of as many parts
                                 "\x88\xff\xff\xff\xff\xff\xff\xff\x7f",  // a tuple of half as many
                                 "\x90",                                  // beyond the last tag
                                 std::string(100'000, '\x05'),            // nested optionals
                                 std::string(100'000, '\x08') + std::string(100'000, '\x09')};
  for (const std::string& bytes : hostile) expect_refused(text_of_bytes(bytes), "these bytes are not a key");
}

TEST(ManifestTest, WarmUpWarmsOneKeyAfterTheOther) {
  const std::vector<ManifestKey> keys = read(text_of({key("a"), key("b"), key("c"), key("d")}));
  std::string warmed, progress;
  const WarmUp done = warm_up(
      keys, std::chrono::nanoseconds::max(),
      [&](const ManifestKey& known) {
        warmed += known.label;
        if (known.label == "b") return absl::DataLossError("first");
        if (known.label == "d") return absl::AbortedError("second");
        return absl::OkStatus();
      },
      [&](std::size_t ready, std::size_t all) { absl::StrAppend(&progress, ready, "/", all, " "); });
  EXPECT_EQ(warmed, "abcd");
  EXPECT_EQ(progress, "1/4 2/4 3/4 4/4 ");
  EXPECT_EQ(done.warmed, 2u);
  EXPECT_EQ(done.failed, 2u);
  EXPECT_EQ(done.left, 0u);
  EXPECT_EQ(done.error.message(), "first");
}

TEST(ManifestTest, WarmUpStopsWhenItsTimeIsSpent) {
  const std::vector<ManifestKey> keys = read(text_of({key("a"), key("b"), key("c")}));
  int calls = 0;
  const auto warm = [&](const ManifestKey&) {
    ++calls;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < end) continue;
    return absl::OkStatus();
  };
  const WarmUp short_one = warm_up(keys, std::chrono::milliseconds(1), warm);
  EXPECT_EQ(calls, 1);  // a key that has begun is completed
  EXPECT_EQ(short_one.warmed, 1u);
  EXPECT_EQ(short_one.left, 2u);
  EXPECT_TRUE(short_one.error.ok());
  EXPECT_EQ(warm_up(keys, std::chrono::nanoseconds(0), warm).left, 3u);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(warm_up({}, std::chrono::seconds(1), warm).warmed, 0u);
}

TEST(ManifestTest, ExceptionsOfWarmPass) {
  const std::vector<ManifestKey> keys = read(text_of({key("a"), key("b")}));
  EXPECT_THROW(warm_up(keys, std::chrono::seconds(1),
                       [](const ManifestKey&) -> absl::Status { throw std::runtime_error("of the caller"); }),
               std::runtime_error);
}

class CacheManifestTest : public CacheTest {};

TEST_F(CacheManifestTest, ThoseThatWereReplayedAreInIt) {
  Cache cache(unshared({.max_executables = 2, .max_templates = 3}));
  const auto times = [&](const Key& which, int runs) {
    for (int i = 0; i < runs; ++i) EXPECT_TRUE(run_add(cache, which).ok());
  };
  int place = 0;
  times(key("dropped"), 9);  // its template is dropped for those of the others
  times(key("address", &place), 9);
  times(key("evicted"), 5);  // it keeps its template
  times(key("often"), 7);
  times(key("once"), 1);
  EXPECT_RUN(kEager, cache.run(key("direct"), stream, [](cudaStream_t) {}));
  const std::vector<ManifestKey> keys = read(manifest(cache));
  ASSERT_EQ(keys.size(), 2u) << manifest(cache);
  EXPECT_EQ(keys.at(0).label, "often");
  EXPECT_EQ(keys.at(0).uses, 7u);
  EXPECT_EQ(keys.at(1).label, "evicted");
  EXPECT_EQ(read_manifest(manifest(cache, 1))->size(), 1u);
  EXPECT_TRUE(read_manifest(manifest(Cache()))->empty());
}

TEST_F(CacheManifestTest, AKeyOfTwoPlacesIsInItOnce) {
  Cache cache;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_add(cache, key("k")).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }).ok());
  }
  const std::vector<ManifestKey> keys = read(manifest(cache));
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys.front().uses, 5u);
}

// Like the next start of a program.
TEST_F(CacheManifestTest, TheNextStartBeginsWithHits) {
  const auto decode = [&](Cache& cache, const Key& which, std::int64_t batch, bool warms) {
    const auto fn = [&, batch](cudaStream_t on) {
      return launch(add, dim3(static_cast<unsigned>(batch)), kBlock, on, data.get(), kSize, 1.0f);
    };
    return warms ? absl::StatusOr<Outcome>(cache.warm(which, stream, fn).ok() ? Outcome::kInlined : Outcome::kEager)
                 : cache.run(which, stream, fn);
  };
  std::string text;
  {
    Cache cache;
    for (int i = 0; i < 12; ++i) {
      const std::int64_t batch = 2 + i % 3;
      EXPECT_TRUE(decode(cache, key("decode", batch), batch, false).ok());
    }
    text = manifest(cache);
  }
  expect_sum(12);
  const std::vector<ManifestKey> keys = read(text);
  EXPECT_EQ(keys.size(), 3u);
  Cache cache;
  const WarmUp done = warm_up(keys, std::chrono::seconds(10), [&](const ManifestKey& known) {
    return decode(cache, known.key, known.parts.at(1).integer, true).status();
  });
  EXPECT_EQ(done.warmed, 3u);
  expect_sum(12);  // nothing was run
  for (std::int64_t batch = 2; batch < 5; ++batch) {
    EXPECT_RUN(kReplayed, decode(cache, key("decode", batch), batch, false));
  }
  expect_sum(15);
}

}  // namespace
}  // namespace graphcache::test
