// Equality of keys: all forms of one value are equal, and different values are not. Lists of different parts are
// different keys; tested with generated lists.
#include "graphcache/key.h"

#include <absl/strings/string_view.h>
#include <absl/types/optional.h>
#include <absl/types/span.h>
#include <driver_types.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "key_support.h"

namespace graphcache {
namespace {

void kernel(int) {}
void other_kernel(int) {}

TEST(KeyTest, IntegersAreEqualByValueWhateverTheirTypeAndBits) {
  EXPECT_EQ(key("a", 1), key("a", size_t{1}));
  EXPECT_EQ(key(1), key(int8_t{1}));
  EXPECT_EQ(key(1), key(1u));
  EXPECT_EQ(key('a'), key(int{'a'}));
  EXPECT_EQ(key(-1), key(int8_t{-1}));
  EXPECT_EQ(key(-1), key(int64_t{-1}));
  EXPECT_EQ(key(0), key(uint64_t{0}));
  EXPECT_EQ(key(std::numeric_limits<int64_t>::max()), key(uint64_t{std::numeric_limits<int64_t>::max()}));
  EXPECT_NE(key(int8_t{-1}), key(uint8_t{255}));
  EXPECT_NE(key(-1), key(std::numeric_limits<uint32_t>::max()));
  EXPECT_NE(key(int64_t{-1}), key(std::numeric_limits<uint64_t>::max()));
  EXPECT_NE(key(std::numeric_limits<int64_t>::min()), key(uint64_t{1} << 63));
  EXPECT_NE(key(1), key(-2));  // -2 is encoded as 1, with another tag
}

TEST(KeyTest, EqualValuesOfDifferentKindsDiffer) {
  const auto* address = reinterpret_cast<const int*>(1);
  const std::vector<Key> ones = {key(1),   key(true),          key(kOne),          key(address),         key("\x01"),
                                 key("1"), key(std::tuple(1)), key(std::array{1}), key(std::optional(1))};
  for (size_t i = 0; i < ones.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(ones[i], ones[j]);
  }
  EXPECT_NE(key(0), key(false));
  EXPECT_NE(key(0), key(nullptr));
  EXPECT_NE(key(""), key(static_cast<const char*>(nullptr)));
  EXPECT_NE(key(nullptr), key(static_cast<const char*>(nullptr)));
}

TEST(KeyTest, EnumsAreEqualByValue) {
  EXPECT_EQ(key(kOne), key(Scoped::kOne));
  EXPECT_EQ(key(kOne), key(Wide::kOne));
  EXPECT_NE(key(kOne), key(kZero));
  EXPECT_NE(key(Scoped::kMinusOne), key(Wide::kMax));
  EXPECT_NE(key(Scoped::kMinusOne), key(-1));
}

TEST(KeyTest, TextsAreEqualByContentWhateverTheirType) {
  const char text[] = "decode";
  std::string same = "decode";
  const Key expected = key("decode");
  EXPECT_EQ(key(text), expected);
  EXPECT_EQ(key(static_cast<const char*>(text)), expected);
  EXPECT_EQ(key(same), expected);
  EXPECT_EQ(key(static_cast<const char*>(same.c_str())), expected);
  EXPECT_EQ(key(std::string_view(same)), expected);
  EXPECT_EQ(key(absl::string_view(same)), expected);
  EXPECT_EQ(key(user::Convertible{}), key("text"));
  EXPECT_NE(key("decodf"), expected);
  EXPECT_EQ(key(std::string_view()), key(""));
  EXPECT_EQ(key(absl::string_view()), key(std::string()));
}

TEST(KeyTest, CharArraysEndAtTheFirstNulOrAtTheirEnd) {
  char padded[16] = "ab";
  padded[10] = 'x';
  const char unterminated[2] = {'a', 'b'};
  EXPECT_EQ(key(padded), key("ab"));
  EXPECT_EQ(key(unterminated), key("ab"));
  EXPECT_NE(key(std::string("ab\0c", 4)), key("ab"));
}

TEST(KeyTest, PointersAreEqualByAddress) {
  int a[2] = {};
  EXPECT_EQ(key(&a[0]), key(static_cast<const void*>(&a[0])));
  EXPECT_NE(key(&a[0]), key(&a[1]));
  EXPECT_EQ(key(nullptr), key(static_cast<int*>(nullptr)));
  EXPECT_EQ(key(cudaStream_t{nullptr}), key(nullptr));
  EXPECT_NE(key(reinterpret_cast<cudaStream_t>(uintptr_t{2})), key(nullptr));
  EXPECT_EQ(key(kernel), key(&kernel));
  EXPECT_NE(key(kernel), key(other_kernel));
}

TEST(KeyTest, LaunchShapesAreEqualByTheirNumbers) {
  EXPECT_EQ(key(dim3(4)), key(dim3(4, 1, 1)));
  EXPECT_NE(key(dim3(4, 1, 2)), key(dim3(4, 2, 1)));
  EXPECT_EQ(key(LaunchConfig{dim3(4), dim3(32)}), key(LaunchConfig{4, 32, 0}));
  EXPECT_NE(key(LaunchConfig{4, 32}), key(LaunchConfig{32, 4}));
  EXPECT_NE(key(LaunchConfig{4, 32}), key(LaunchConfig{4, 32, 1}));
  EXPECT_NE(key(dim3(4), dim3(32), 0), key(LaunchConfig{4, 32}));
  EXPECT_NE(key(4, 1, 1, 32, 1, 1, 0), key(LaunchConfig{4, 32}));
  EXPECT_NE(key(4, 1, 1), key(dim3(4)));
}

TEST(KeyTest, SequencesAreEqualByTheirElements) {
  const int array[] = {1, 2, 3};
  std::vector<int64_t> vector = {1, 2, 3};
  const Key expected = key(array);
  EXPECT_EQ(key(std::array<int8_t, 3>{1, 2, 3}), expected);
  EXPECT_EQ(key(vector), expected);
  EXPECT_EQ(key(std::span<const int64_t>(vector)), expected);
  EXPECT_EQ(key(std::span<int64_t, 3>(vector)), expected);
  EXPECT_EQ(key(absl::Span<const int64_t>(vector)), expected);
  EXPECT_EQ(key(absl::MakeSpan(vector)), expected);
  EXPECT_NE(key(1, 2, 3), expected);
  EXPECT_EQ(key(std::vector<bool>{true, false}), key(std::array{true, false}));
  EXPECT_NE(key(std::vector<bool>{true, false}), key(std::array{1, 0}));
  EXPECT_EQ(key(std::vector<int>()), key(std::array<std::string, 0>()));
}

TEST(KeyTest, ElementsMayBeAnyPart) {
  const char names[2][4] = {"a", "bc"};
  EXPECT_EQ(key(names), key(std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(key(std::vector<std::vector<int>>{{1}, {}}), key(std::array{std::vector<int>{1}, std::vector<int>()}));
  EXPECT_NE(key(std::vector<std::vector<int>>{{1}, {}}), key(std::vector<std::vector<int>>{{}, {1}}));
  EXPECT_EQ(key(std::pair(1, std::optional<dim3>(dim3(2)))), key(std::tuple(1u, std::optional<dim3>(dim3(2)))));
  EXPECT_NE(key(std::vector<std::pair<int, bool>>{{1, true}}), key(std::vector<std::pair<int, bool>>{{1, false}}));
}

TEST(KeyTest, OptionalsDifferByBeingEmptyAndByDepth) {
  using Optional = std::optional<int>;
  EXPECT_NE(key(Optional()), key(Optional(0)));
  EXPECT_NE(key(Optional(0)), key(Optional(1)));
  EXPECT_EQ(key(Optional()), key(std::optional<std::string>()));
  EXPECT_EQ(key(absl::optional<int>(1)), key(Optional(1)));
  EXPECT_EQ(key(absl::optional<int>()), key(Optional()));
  EXPECT_NE(key(std::optional<Optional>()), key(std::optional<Optional>(Optional())));
}

TEST(KeyTest, TuplesAndTextsAreFramed) {
  EXPECT_NE(key(std::tuple(1, 2)), key(1, 2));
  EXPECT_NE(key(std::tuple(1, 2), 3), key(1, std::tuple(2, 3)));
  EXPECT_NE(key(std::tuple(1, std::tuple(2, 3))), key(std::tuple(std::tuple(1, 2), 3)));
  EXPECT_NE(key(std::tuple<>()), key());
  EXPECT_NE(key("ab", "c"), key("a", "bc"));
  EXPECT_NE(key("ab"), key("a", "b"));
  EXPECT_NE(key("", "a"), key("a", ""));
  EXPECT_NE(key("a"), key("a", ""));
}

TEST(KeyTest, TextsOfAnySizeAreWrittenDownWhole) {
  std::string text;
  for (int size = 0; size <= 40; ++size) {
    EXPECT_EQ(key(text, 7).to_string(), "(\"" + text + "\", 7)");
    text += static_cast<char>('a' + size % 26);
  }
}

TEST(KeyTest, TheLongestIntegersFollowedByOthersAreKept) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(key(most, most, 1), key(most, most, 1));
  EXPECT_NE(key(most, most, 1), key(most, most - 1, 1));
  for (int shift = 0; shift < 64; ++shift) {
    EXPECT_NE(key(uint64_t{1} << shift, 5), key((uint64_t{1} << shift) - 1, 5));
    EXPECT_NE(key(int64_t{-1} << shift, 5), key((int64_t{-1} << shift) + 1, 5));
  }
}

TEST(KeyTest, AKeyerAndOneCallAgree) {
  Keyer keyer;
  keyer.add("a").add(1, true);
  for (int i = 0; i < 3; ++i) keyer.add(i);
  EXPECT_EQ(std::move(keyer).finish(), key("a", 1, true, 0, 1, 2));
}

TEST(KeyTest, PaddingDoesNotEnter) {
  alignas(user::Padded) unsigned char a[sizeof(user::Padded)], b[sizeof(user::Padded)];
  std::memset(a, 0x00, sizeof(a));
  std::memset(b, 0xff, sizeof(b));
  auto* first = reinterpret_cast<user::Padded*>(a);
  auto* second = reinterpret_cast<user::Padded*>(b);
  first->small = second->small = 1;
  first->large = second->large = 2;
  ASSERT_NE(std::memcmp(a, b, sizeof(a)), 0);
  EXPECT_EQ(key(*first), key(*second));
  second->large = 3;
  EXPECT_NE(key(*first), key(*second));
}

TEST(KeyTest, TypesOfTheUserAreFramedAndNestAndTheirGraphcacheKeyPrecedesEveryOtherForm) {
  EXPECT_NE(key(user::Padded{1, 2}), key(char{1}, int64_t{2}));
  EXPECT_NE(key(user::Nothing{}), key());
  const user::Shape shape{{1, 2}, {3, 4}};
  EXPECT_EQ(key(shape), key(user::Shape{{1, 2}, {3, 4}}));
  EXPECT_NE(key(shape), key(user::Shape{{1}, {3, 4}}));
  EXPECT_EQ(key(std::vector{shape}, std::optional(shape)), key(std::array{shape}, std::optional(shape)));
  EXPECT_NE(key(user::Nothing{}, user::Padded{1, 2}), key(user::Padded{1, 2}, user::Nothing{}));
  EXPECT_EQ(key(user::Name{"ab"}), key(user::Name{"cd"}));
  EXPECT_NE(key(user::Name{"ab"}), key(user::Name{"abc"}));
  EXPECT_EQ(key(user::Mode::kFast).label(), "fast");
  EXPECT_NE(key(&shape), key(&shape + 1));
  EXPECT_NE(key(user::kOne), key(user::kTwo));
  EXPECT_NE(key(user::Flags(true)), key(user::Flags(false)));
}

TEST(KeyTest, ExceptionsOfGraphcacheKeyPassThrough) {
  EXPECT_THROW(key("a", user::Thrower{}), int);  // leaks nothing: run this with a sanitizer
}

// ---- Generated lists of parts ---------------------------------------------------------------------------------------

using Writer = std::function<void(Keyer&)>;

struct Both {
  const Writer& a;
  const Writer& b;
};
void graphcache_key(Keyer& keyer, const Both& both) {
  both.a(keyer);
  both.b(keyer);
}

// Parts that all differ, each with a unique description.
std::vector<std::pair<Writer, std::string>> some_parts() {
  std::vector<std::pair<Writer, std::string>> parts;
  const auto part = [&](auto value, const std::string& text) {
    parts.emplace_back([value](Keyer& keyer) { keyer.add(value); }, text);
  };
  for (const int64_t i : {0, 1, 2, 3, 7, 8, 9, 16, 17, 96, 97, 112, 127, 128, 255, 256, 65535, 65536, 1 << 24}) {
    const std::string digits = std::to_string(i);
    part(i, "int " + digits);
    part(-i - 1, "int -" + digits + "-1");
    part(static_cast<Wide>(i), "enum " + digits);
    part(reinterpret_cast<const int*>(i), "pointer " + digits);
    part(dim3(static_cast<unsigned>(i), 1, 1), "dim3 x " + digits);
    part(std::optional<int64_t>(i), "optional " + digits);
    part(std::array<int64_t, 1>{i}, "sequence " + digits);
    part(std::tuple(i), "tuple " + digits);
    part(user::Padded{5, i}, "padded " + digits);
    part(std::string(1, static_cast<char>(i)) + "/" + digits, "text " + digits);
  }
  part(true, "true");
  part(false, "false");
  part(static_cast<const char*>(nullptr), "null text");
  part(std::optional<int>(), "no value");
  part(std::optional<std::optional<int>>(std::optional<int>()), "some no value");
  part(std::vector<int>(), "empty sequence");
  part(std::vector<std::vector<int>>{{}}, "sequence of empty sequence");
  part(std::tuple<>(), "empty tuple");
  part(user::Nothing{}, "nothing");
  part(std::string(), "empty text");
  part(LaunchConfig{}, "launch config");
  // Texts that look like encodings of other parts.
  for (int tag = 1; tag < 0x90; ++tag) {
    part(std::string{static_cast<char>(tag)}, "tag " + std::to_string(tag));
    part(std::string{'\x11', static_cast<char>(tag)}, "one, tag " + std::to_string(tag));
  }
  return parts;
}

TEST(KeyTest, DifferentListsOfPartsAreDifferentKeys) {
  const auto parts = some_parts();
  std::map<std::string, std::string> seen;  // from canonical bytes to description
  const auto add = [&](const std::string& text, const auto&... writers) {
    Keyer keyer;
    (writers(keyer), ...);
    const Key made = std::move(keyer).finish();
    const auto [place, is_new] = seen.emplace(std::string(made.data(), made.size()), text);
    EXPECT_TRUE(is_new) << text << " is also " << place->second;
  };
  const auto nested = [](const Writer& a, const Writer& b) {
    return [&a, &b](Keyer& keyer) { keyer.add(Both{a, b}); };
  };
  add("", [](Keyer&) {});
  for (const auto& [a, a_text] : parts) {
    add(a_text, a);
    for (const auto& [b, b_text] : parts) {
      add(a_text + ", " + b_text, a, b);
      add("{" + a_text + ", " + b_text + "}", nested(a, b));
    }
  }
  std::mt19937 random(20);
  std::map<std::string, bool> drawn;
  for (int i = 0; i < 20000; ++i) {
    const auto& [a, a_text] = parts[random() % parts.size()];
    const auto& [b, b_text] = parts[random() % parts.size()];
    const auto& [c, c_text] = parts[random() % parts.size()];
    const std::string lists[] = {a_text + ", " + b_text + ", " + c_text, "{" + a_text + ", " + b_text + "}, " + c_text,
                                 a_text + ", {" + b_text + ", " + c_text + "}"};
    if (drawn.emplace(lists[0], true).second) {
      add(lists[0], a, b, c);
      add(lists[1], nested(a, b), c);
      add(lists[2], a, nested(b, c));
    }
  }
  EXPECT_GT(seen.size(), 100000u);
}

}  // namespace
}  // namespace graphcache
