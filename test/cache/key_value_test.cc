// A key as a value: its memory, copies and moves, its hash, and its text.
#include <absl/hash/hash.h>
#include <absl/hash/hash_testing.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "key_support.h"

namespace {
std::atomic<int> allocations{0};
std::atomic<size_t> allocated_bytes{0};
}  // namespace

// Not inlined, because g++ would take this for a free() of memory from the built-in operator new.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  allocated_bytes += size;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
// A sanitizer's own operators do not call the ones above.
void* operator new[](size_t size) { return operator new(size); }
void operator delete[](void* block) noexcept { operator delete(block); }
void operator delete[](void* block, size_t) noexcept { operator delete(block); }

namespace graphcache {

// Makes two different keys collide, which is infeasible by search.
class KeyTestPeer {
 public:
  static Key with_hash(Key key, size_t hash) {
    key.hash_ = hash;
    return key;
  }
};

namespace {

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
  // A key that had a block is empty then.
  Key large = key(std::string(100, 'x'));
  const Key taken = std::move(large);
  EXPECT_EQ(large, Key());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(large.hash(), Key().hash());
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
    copy = key(1);  // a moved-from key can be assigned
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

TEST(KeyTest, HashAgreesWithEqualityAndStdHashIsTheSame) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Key(), key(0), key(0u), key(1), key(true), key("a"), key(std::string("a")), key("a", 1), key("a", size_t{1}),
       key(std::string(100, 'x')), key(std::string(100, 'x')), key(std::string(101, 'x')), key(dim3(1))}));
  EXPECT_EQ(key("a", 1).hash(), key("a", size_t{1}).hash());
  EXPECT_NE(key("a", 1).hash(), key("a", 2).hash());
  EXPECT_NE(key("x", std::string(100, 'x')).hash(), key("y", std::string(100, 'x')).hash());
  EXPECT_EQ(std::hash<Key>()(key("a", 1)), key("a", 1).hash());
  EXPECT_EQ(std::hash<Key>()(Key()), Key().hash());
  const std::unordered_map<Key, int> numbers = {{key("a", 1), 1}, {key("a", 2), 2}, {key(std::string(100, 'x')), 3}};
  EXPECT_EQ(numbers.at(key("a", size_t{2})), 2);
  EXPECT_EQ(numbers.at(key(std::string(100, 'x'))), 3);
  EXPECT_EQ(numbers.count(key("b", 1)), 0u);
}

TEST(KeyTest, CollidingHashesDoNotMakeKeysEqual) {
  for (const size_t size : {3, 40, 48, 49, 300}) {
    const std::string text(size, 'x');
    const Key a = KeyTestPeer::with_hash(key(text + "a"), 42);
    const Key b = KeyTestPeer::with_hash(key(text + "b"), 42);
    EXPECT_EQ(a.hash(), b.hash());
    EXPECT_NE(a, b);
    EXPECT_EQ(a, KeyTestPeer::with_hash(key(text + "a"), 42));
    EXPECT_NE(a, KeyTestPeer::with_hash(key(text + "a", 1), 42));  // text + "a" is where the encodings differ
    EXPECT_NE(KeyTestPeer::with_hash(Key(), 42), a);
  }
}

TEST(KeyLabelTest, IsTheFirstTextAtWhateverDepth) {
  EXPECT_EQ(key("train_step", 8, "other").label(), "train_step");
  EXPECT_EQ(key(8, dim3(0x60, 0x6060, 0x61), "train_step").label(), "train_step");
  EXPECT_EQ(key(std::tuple(1, std::optional<std::string>("inner")), "outer").label(), "inner");
  EXPECT_EQ(key(static_cast<const char*>(nullptr), "second").label(), "second");
  EXPECT_EQ(key("", "second").label(), "");
  EXPECT_EQ(key(1, true, nullptr).label(), "");
}

TEST(KeyLabelTest, IsCutAtThirtyTwoBytesAndNotInsideAUtf8Sequence) {
  EXPECT_EQ(key(std::string(32, 'x')).label(), std::string(32, 'x'));
  EXPECT_EQ(key(std::string(33, 'x')).label(), std::string(32, 'x'));
  EXPECT_EQ(key(std::string(3300, 'x')).label(), std::string(32, 'x'));
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001f600"}) {
    for (size_t before = 32 - 5; before <= 32; ++before) {
      const std::string text(before, 'x');
      const bool fits = before + character.size() <= 32;
      const std::string expected = fits ? (text + character + "yyyyy").substr(0, 32) : text;
      EXPECT_EQ(key(text + character + "yyyyy").label(), expected) << before;
    }
  }
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

TEST(KeyToStringTest, IsCutAtTheLimitWhateverTheParts) {
  const std::vector<Key> keys = {key("train_step", 8, dim3(4)),
                                 key("\u00e9\u20ac\U0001f600", "\x80\n"),
                                 key(LaunchConfig{2, 32, 7}, -5, kOne),
                                 key(std::vector<std::tuple<int, bool>>{{1, true}, {2, false}}),
                                 key(std::optional<std::optional<int>>(3), std::optional<int>(), nullptr),
                                 key(user::Shape{{1, 2}, {3, 4}}, user::Nothing{})};
  for (const Key& key : keys) {
    const std::string whole = key.to_string();
    EXPECT_EQ(key.to_string(whole.size()), whole);
    for (size_t limit = 0; limit < whole.size(); ++limit) {
      const std::string text = key.to_string(limit);
      ASSERT_GE(text.size(), 3u);
      EXPECT_EQ(text.substr(text.size() - 3), "...");
      EXPECT_EQ(text.substr(0, text.size() - 3), whole.substr(0, text.size() - 3));
      EXPECT_LE(text.size(), limit + 3);
      EXPECT_GE(text.size(), limit) << "no more is left out than the beginning of a UTF-8 sequence";
    }
  }
  EXPECT_EQ(key("\u20ac\u20ac").to_string(4), "(\"...");
  // A long key is not read beyond the limit.
  const Key lines = key(std::string(1 << 20, '\n')), list = key(std::vector<int>(1 << 20, 1));
  const size_t before = allocated_bytes;
  EXPECT_EQ(lines.to_string(100).size(), 103u);
  EXPECT_EQ(list.to_string(100).size(), 103u);
  EXPECT_LT(allocated_bytes - before, 4096u);
}

}  // namespace
}  // namespace graphcache
