#include "graphcache/key.h"

#include <absl/hash/hash.h>
#include <absl/hash/hash_testing.h>
#include <absl/strings/string_view.h>
#include <absl/types/optional.h>
#include <absl/types/span.h>
#include <driver_types.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace {
std::atomic<int> allocations{0};
}  // namespace

// Not inlined, since g++ then sees a free() of what it takes for the built-in operator new's.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
// A sanitizer's own do not call the ones above.
void* operator new[](size_t size) { return operator new(size); }
void operator delete[](void* block) noexcept { operator delete(block); }
void operator delete[](void* block, size_t) noexcept { operator delete(block); }

namespace graphcache {

// Makes two different keys collide, which cannot be had by trying.
class KeyTestPeer {
 public:
  static Key with_hash(Key key, size_t hash) {
    key.hash_ = hash;
    return key;
  }
};

void PrintTo(const Key& key, std::ostream* out) { *out << key.to_string(); }

}  // namespace graphcache

namespace user {

struct Padded {
  char small;
  int64_t large;
};
void graphcache_key(graphcache::Keyer& keyer, const Padded& padded) { keyer.add(padded.small, padded.large); }

struct Nothing {};
void graphcache_key(graphcache::Keyer&, const Nothing&) {}

struct Shape {
  std::vector<int> extents;
  Padded padded;
};
void graphcache_key(graphcache::Keyer& keyer, const Shape& shape) { keyer.add(shape.extents).add(shape.padded); }

// Each could be written down in another way as well: the function decides.
struct Name {
  std::string text;
  operator std::string_view() const { return text; }
};
void graphcache_key(graphcache::Keyer& keyer, const Name& name) { keyer.add(name.text.size()); }

enum class Mode { kFast, kExact };
void graphcache_key(graphcache::Keyer& keyer, Mode mode) { keyer.add(mode == Mode::kFast ? "fast" : "exact"); }

struct Convertible {
  operator std::string_view() const { return "text"; }
};

struct Thrower {};
void graphcache_key(graphcache::Keyer& keyer, const Thrower&) {
  keyer.add(std::string(1000, 'x'));
  throw 7;
}

}  // namespace user

namespace graphcache {
namespace {

enum Plain { kZero, kOne };
enum class Scoped : int8_t { kMinusOne = -1, kOne = 1 };
enum class Wide : uint64_t { kOne = 1, kMax = std::numeric_limits<uint64_t>::max() };

void kernel(int) {}
void other_kernel(int) {}

int allocations_of(const std::function<void()>& body) {
  const int before = allocations;
  body();
  return allocations - before;
}

// A key of exactly `size` canonical bytes: a text of 1 to 255 bytes takes two more.
Key key_of_size(size_t size) {
  const Key result = key(std::string(size - 2, 'x'));
  EXPECT_EQ(result.size(), size);
  return result;
}

// --- equality of what should be equal

TEST(KeyTest, IntegersAreEqualByValueWhateverTheirType) {
  EXPECT_EQ(key("a", 1), key("a", size_t{1}));
  EXPECT_EQ(key(1), key(int8_t{1}));
  EXPECT_EQ(key(1), key(1u));
  EXPECT_EQ(key('a'), key(int{'a'}));
  EXPECT_EQ(key(-1), key(int8_t{-1}));
  EXPECT_EQ(key(-1), key(int64_t{-1}));
  EXPECT_EQ(key(0), key(uint64_t{0}));
  EXPECT_EQ(key(std::numeric_limits<int64_t>::max()), key(uint64_t{std::numeric_limits<int64_t>::max()}));
}

TEST(KeyTest, IntegersOfEqualBitsAndOtherValueDiffer) {
  EXPECT_NE(key(int8_t{-1}), key(uint8_t{255}));
  EXPECT_NE(key(-1), key(std::numeric_limits<uint32_t>::max()));
  EXPECT_NE(key(int64_t{-1}), key(std::numeric_limits<uint64_t>::max()));
  EXPECT_NE(key(std::numeric_limits<int64_t>::min()), key(uint64_t{1} << 63));
  EXPECT_NE(key(1), key(-2));  // -2 is written down as 1, under another tag
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
}

TEST(KeyTest, CharArraysEndAtTheFirstNulOrAtTheirEnd) {
  char padded[16] = "ab";
  padded[10] = 'x';
  const char unterminated[2] = {'a', 'b'};
  EXPECT_EQ(key(padded), key("ab"));
  EXPECT_EQ(key(unterminated), key("ab"));
  EXPECT_NE(key(std::string("ab\0c", 4)), key("ab"));
}

TEST(KeyTest, EmptyTextsAreEqual) {
  EXPECT_EQ(key(std::string_view()), key(""));
  EXPECT_EQ(key(absl::string_view()), key(std::string()));
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

TEST(KeyTest, TuplesAreFramed) {
  EXPECT_NE(key(std::tuple(1, 2)), key(1, 2));
  EXPECT_NE(key(std::tuple(1, 2), 3), key(1, std::tuple(2, 3)));
  EXPECT_NE(key(std::tuple(1, std::tuple(2, 3))), key(std::tuple(std::tuple(1, 2), 3)));
  EXPECT_NE(key(std::tuple<>()), key());
}

TEST(KeyTest, TextsDoNotRunTogether) {
  EXPECT_NE(key("ab", "c"), key("a", "bc"));
  EXPECT_NE(key("ab"), key("a", "b"));
  EXPECT_NE(key("", "a"), key("a", ""));
  EXPECT_NE(key("a"), key("a", ""));
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

// --- distinctness, by generation

using Writer = std::function<void(Keyer&)>;

struct Both {
  const Writer& a;
  const Writer& b;
};
void graphcache_key(Keyer& keyer, const Both& both) {
  both.a(keyer);
  both.b(keyer);
}

// Parts that all differ, each with a description that no other has.
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
  std::map<std::string, std::string> seen;  // canonical bytes to description
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

// --- types of the user

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

TEST(KeyTest, TypesOfTheUserAreFramedAndNest) {
  EXPECT_NE(key(user::Padded{1, 2}), key(char{1}, int64_t{2}));
  EXPECT_NE(key(user::Nothing{}), key());
  const user::Shape shape{{1, 2}, {3, 4}};
  EXPECT_EQ(key(shape), key(user::Shape{{1, 2}, {3, 4}}));
  EXPECT_NE(key(shape), key(user::Shape{{1}, {3, 4}}));
  EXPECT_EQ(key(std::vector{shape}, std::optional(shape)), key(std::array{shape}, std::optional(shape)));
  EXPECT_NE(key(user::Nothing{}, user::Padded{1, 2}), key(user::Padded{1, 2}, user::Nothing{}));
}

TEST(KeyTest, GraphcacheKeyComesBeforeEveryOtherForm) {
  EXPECT_EQ(key(user::Name{"ab"}), key(user::Name{"cd"}));
  EXPECT_NE(key(user::Name{"ab"}), key(user::Name{"abc"}));
  EXPECT_EQ(key(user::Mode::kFast).label(), "fast");
}

TEST(KeyTest, WhatGraphcacheKeyThrowsPassesThrough) {
  EXPECT_THROW(key("a", user::Thrower{}), int);  // leaks nothing: run under a sanitizer
}

// --- the value type

TEST(KeyTest, ADefaultKeyHasNoParts) {
  const Key empty;
  EXPECT_EQ(empty, key());
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(empty.label(), "");
  EXPECT_EQ(empty.to_string(), "()");
  EXPECT_NE(empty, key(0));
}

TEST(KeyTest, KeysOfUpToTheInlineBytesAllocateNothing) {
  const std::string text(Key::kInlineBytes - 2, 'x');
  const int count = allocations_of([&] {
    Key first = key(text);
    Key copy = first;
    Key moved = std::move(copy);
    first = moved;
    first = std::move(moved);
    (void)(first == key(text));
    (void)first.label();
    (void)key("train_step", int64_t{1} << 40, dim3(1000, 20, 3), dim3(256));
  });
  EXPECT_EQ(count, 0);
  EXPECT_EQ(key(text).size(), Key::kInlineBytes);
}

TEST(KeyTest, LongerKeysOwnOneBlockAndMovesTakeIt) {
  const std::string text(Key::kInlineBytes - 1, 'x');
  EXPECT_EQ(allocations_of([&] { (void)key(text); }), 1);
  const Key original = key(text);
  EXPECT_EQ(original.size(), Key::kInlineBytes + 1);
  Key copy;
  EXPECT_EQ(allocations_of([&] { copy = original; }), 1);
  EXPECT_NE(copy.data(), original.data());
  const char* block = copy.data();
  EXPECT_EQ(allocations_of([&] {
              Key moved = std::move(copy);
              EXPECT_EQ(moved.data(), block);
              copy = std::move(moved);
            }),
            0);
  EXPECT_EQ(copy.data(), block);
  EXPECT_EQ(copy, original);
}

TEST(KeyTest, KeysOfEverySizeCompareCopyAndMove) {
  for (size_t size = 3; size < 250; ++size) {
    const Key original = key_of_size(size);
    Key copy = original;
    EXPECT_EQ(copy, original);
    EXPECT_EQ(copy.hash(), original.hash());
    EXPECT_NE(key_of_size(size + 1), original);

    Key moved = std::move(copy);
    EXPECT_EQ(moved, original);
    copy = key(1);  // a key moved from takes a new value
    EXPECT_EQ(copy, key(1));

    std::string text(size - 2, 'x');
    for (char& c : text) {
      c = 'y';
      EXPECT_NE(key(text), original);
      c = 'x';
    }
    EXPECT_EQ(key(text), original);
  }
}

TEST(KeyTest, AssignmentWorksBetweenAllSizesAndToItself) {
  const Key small = key(1), large = key(std::string(100, 'x')), larger = key(std::string(5000, 'y'));
  for (const Key& from : {small, large, larger, Key()}) {
    for (const Key& to : {small, large, larger, Key()}) {
      Key copied = to, moved = to, source = from;
      copied = from;
      moved = std::move(source);
      EXPECT_EQ(copied, from);
      EXPECT_EQ(moved, from);
    }
    Key self = from;
    Key& alias = self;
    self = alias;
    EXPECT_EQ(self, from);
    self = std::move(alias);
    EXPECT_EQ(self, from);
    std::swap(self, alias);
    EXPECT_EQ(self, from);
  }
}

TEST(KeyTest, AKeyMovedFromIsEmptyIfItOwnedABlock) {
  Key large = key(std::string(100, 'x'));
  const Key taken = std::move(large);
  EXPECT_EQ(large, Key());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(large.hash(), Key().hash());
}

TEST(KeyTest, AKeyThatOutgrowsTheBufferIsTheSameKey) {
  std::vector<int> numbers;
  Keyer one_by_one;
  one_by_one.add("many");
  for (int i = 0; i < 10000; ++i) {
    numbers.push_back(i * 37);
    one_by_one.add(i * 37);
  }
  Keyer at_once;
  at_once.add("many");
  for (const int number : numbers) at_once.add(int64_t{number});
  const Key first = std::move(one_by_one).finish(), second = std::move(at_once).finish();
  EXPECT_EQ(first, second);
  EXPECT_GT(first.size(), 20000u);
  numbers[9999] += 1;
  EXPECT_NE(key(numbers), key(std::vector<int>(numbers.size())));
  EXPECT_EQ(key(std::string(100000, 'x')), key(std::string(100000, 'x')));
}

TEST(KeyTest, AKeyLeftUnfinishedByAnExceptionCanBeRead) {
  Keyer keyer;
  keyer.add(1);
  EXPECT_THROW(keyer.add(user::Thrower{}), int);
  const Key unfinished = std::move(keyer).finish();
  EXPECT_EQ(unfinished.label(), std::string(32, 'x'));
  EXPECT_EQ(unfinished.to_string(), "(1, {\"" + std::string(1000, 'x') + "\"})");
}

TEST(KeyTest, HashAgreesWithEquality) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly({
      Key(),
      key(0),
      key(0u),
      key(1),
      key(true),
      key("a"),
      key(std::string("a")),
      key("a", 1),
      key("a", size_t{1}),
      key(std::string(100, 'x')),
      key(std::string(100, 'x')),
      key(std::string(101, 'x')),
      key(dim3(1)),
  }));
  EXPECT_EQ(key("a", 1).hash(), key("a", size_t{1}).hash());
  EXPECT_NE(key("a", 1).hash(), key("a", 2).hash());
  EXPECT_NE(key("x", std::string(100, 'x')).hash(), key("y", std::string(100, 'x')).hash());
}

TEST(KeyTest, CollidingHashesDoNotMakeKeysEqual) {
  for (const size_t size : {3, 40, 48, 49, 300}) {
    const std::string text(size, 'x');
    const Key a = KeyTestPeer::with_hash(key(text + "a"), 42);
    const Key b = KeyTestPeer::with_hash(key(text + "b"), 42);
    EXPECT_EQ(a.hash(), b.hash());
    EXPECT_NE(a, b);
    EXPECT_EQ(a, KeyTestPeer::with_hash(key(text + "a"), 42));
    EXPECT_NE(a, KeyTestPeer::with_hash(key(text + "a", 1), 42));  // a is where this one begins
    EXPECT_NE(KeyTestPeer::with_hash(Key(), 42), a);
  }
}

// --- for people

TEST(KeyLabelTest, IsTheFirstTextAtWhateverDepth) {
  EXPECT_EQ(key("train_step", 8, "other").label(), "train_step");
  EXPECT_EQ(key(8, dim3(0x60, 0x6060, 0x61), "train_step").label(), "train_step");
  EXPECT_EQ(key(std::tuple(1, std::optional<std::string>("inner")), "outer").label(), "inner");
  EXPECT_EQ(key(static_cast<const char*>(nullptr), "second").label(), "second");
  EXPECT_EQ(key("", "second").label(), "");
  EXPECT_EQ(key(1, true, nullptr).label(), "");
}

TEST(KeyLabelTest, IsCutAtThirtyTwoBytes) {
  EXPECT_EQ(key(std::string(32, 'x')).label(), std::string(32, 'x'));
  EXPECT_EQ(key(std::string(33, 'x')).label(), std::string(32, 'x'));
  EXPECT_EQ(key(std::string(3300, 'x')).label(), std::string(32, 'x'));
}

TEST(KeyLabelTest, IsNotCutInsideAUtf8Sequence) {
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001f600"}) {
    for (size_t before = 32 - 5; before <= 32; ++before) {
      const std::string text(before, 'x');
      const bool fits = before + character.size() <= 32;
      const std::string expected = fits ? (text + character + "yyyyy").substr(0, 32) : text;
      EXPECT_EQ(key(text + character + "yyyyy").label(), expected) << before;
    }
  }
}

TEST(KeyLabelTest, BytesThatAreNotUtf8AreCutAtTheLimit) {
  EXPECT_EQ(key(std::string(40, '\x80')).label(), std::string(32, '\x80'));
}

TEST(KeyToStringTest, ShowsEveryPart) {
  EXPECT_EQ(key("train_step", 8, dim3(4)).to_string(), "(\"train_step\", 8, {4, 1, 1})");
  EXPECT_EQ(key(-1, std::numeric_limits<int64_t>::min(), std::numeric_limits<uint64_t>::max()).to_string(),
            "(-1, -9223372036854775808, 18446744073709551615)");
  EXPECT_EQ(key(true, false, kOne, Scoped::kMinusOne).to_string(), "(true, false, enum 1, enum -1)");
  EXPECT_EQ(key(nullptr, reinterpret_cast<int*>(0xab00)).to_string(), "(0x0, 0xab00)");
  EXPECT_EQ(key(static_cast<const char*>(nullptr), "").to_string(), "(null text, \"\")");
  EXPECT_EQ(key(std::optional<int>(), std::optional<int>(3)).to_string(), "(none, 3)");
  EXPECT_EQ(key(std::vector<int>{1, 2}, std::tuple(1, "a")).to_string(), "([1, 2], (1, \"a\"))");
  EXPECT_EQ(key(LaunchConfig{2, 32, 7}).to_string(), "({{2, 1, 1}, {32, 1, 1}, 7})");
  EXPECT_EQ(key(user::Shape{{}, {1, 2}}, user::Nothing{}).to_string(), "({[], {1, 2}}, {})");
  EXPECT_EQ(key("a\"\n").to_string(), "(\"a\\\"\\n\")");
}

// --- buckets

TEST(BucketsTest, UpIsTheSmallestBucketThatIsNotBelow) {
  const Buckets buckets{1, 2, 4, 8, 16};
  EXPECT_EQ(buckets.up(13), 16);
  EXPECT_EQ(buckets.up(16), 16);
  EXPECT_EQ(buckets.up(8), 8);
  EXPECT_EQ(buckets.up(9), 16);
  EXPECT_EQ(buckets.up(3), 4);
  EXPECT_EQ(buckets.up(size_t{3}), 4);
}

TEST(BucketsTest, BelowTheSmallestIsTheSmallest) {
  const Buckets buckets{4, 8};
  for (const int64_t n : {int64_t{4}, int64_t{1}, int64_t{0}, int64_t{-5}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(buckets.up(n), 4);
  }
}

TEST(BucketsTest, AboveTheLargestAreItsMultiples) {
  const Buckets buckets{3, 10};
  EXPECT_EQ(buckets.up(11), 20);
  EXPECT_EQ(buckets.up(20), 20);
  EXPECT_EQ(buckets.up(21), 30);
}

TEST(BucketsTest, AMultipleThatIsNoIntegerLeavesTheSizeAsItIs) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Buckets{10}.up(most), most);
  EXPECT_EQ(Buckets{10}.up(most - 7), most - 7);  // which is a multiple of 10
  EXPECT_EQ(Buckets{10}.up(most - 8), most - 7);
  EXPECT_EQ(Buckets{most}.up(5), most);
}

TEST(BucketsTest, ValuesAreSortedDistinctAndPositive) {
  const Buckets buckets{8, 2, 8, -1, 0, 1, 2};
  EXPECT_EQ(buckets.values(), (std::vector<int64_t>{1, 2, 8}));
  EXPECT_EQ(std::vector<int64_t>(buckets.begin(), buckets.end()), buckets.values());
  EXPECT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets.largest(), 8);
  EXPECT_EQ(Buckets(std::vector<int64_t>{4, 2}).values(), (std::vector<int64_t>{2, 4}));
}

TEST(BucketsTest, WithoutBucketsNothingIsRounded) {
  for (const Buckets& none : {Buckets{}, Buckets{0, -3}, Buckets(std::vector<int64_t>())}) {
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(none.largest(), 0);
    EXPECT_EQ(none.up(13), 13);
    EXPECT_EQ(none.up(-13), -13);
  }
}

TEST(BucketsTest, FloatingPointSizesAreRoundedUp) {
  const Buckets buckets{1, 4, 8};
  EXPECT_EQ(buckets.up(4.0), 4);
  EXPECT_EQ(buckets.up(4.01f), 8);
  EXPECT_EQ(buckets.up(-1e300), 1);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(buckets.up(1e300), buckets.up(most));
  EXPECT_EQ(buckets.up(std::nan("")), buckets.up(most));
  EXPECT_EQ(buckets.up(9223372036854775808.0), buckets.up(most));
}

TEST(BucketsTest, SeriesEndAtTheirMaximum) {
  using Values = std::vector<int64_t>;
  EXPECT_EQ(Buckets::powers_of_two(16).values(), (Values{1, 2, 4, 8, 16}));
  EXPECT_EQ(Buckets::powers_of_two(12).values(), (Values{1, 2, 4, 8, 12}));
  EXPECT_EQ(Buckets::powers_of_two(1).values(), Values{1});
  EXPECT_TRUE(Buckets::powers_of_two(0).empty());
  EXPECT_EQ(Buckets::powers_of_two(std::numeric_limits<int64_t>::max()).size(), 64u);

  EXPECT_EQ(Buckets::every(8, 24).values(), (Values{8, 16, 24}));
  EXPECT_EQ(Buckets::every(8, 20).values(), (Values{8, 16, 20}));
  EXPECT_EQ(Buckets::every(8, 5).values(), Values{5});
  EXPECT_EQ(Buckets::every(0, 3).values(), (Values{1, 2, 3}));
  EXPECT_TRUE(Buckets::every(8, -1).empty());
  const int64_t half = std::numeric_limits<int64_t>::max() / 2 + 1;
  EXPECT_EQ(Buckets::every(half, std::numeric_limits<int64_t>::max()).size(), 2u);
}

}  // namespace
}  // namespace graphcache
