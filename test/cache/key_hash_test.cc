// The hash of keys: SipHash-1-3 with a secret of the process.
#include <absl/container/flat_hash_set.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "graphcache/key.h"
#include "siphash.h"

namespace graphcache {
namespace {

// The hashes of the bytes 0, 1, ... size - 1 with a secret of zeros, as given by CPython 3.11 for
// hash(bytes(range(size))) with PYTHONHASHSEED=0.
TEST(SipHashTest, IsThatOfOthers) {
  std::string bytes(63, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const auto hash = [&](std::size_t size) { return siphash13({0, 0}, bytes.data(), size); };
  EXPECT_EQ(hash(1), 7541581120933061747u);
  EXPECT_EQ(hash(7), 3389392686435873370u);
  EXPECT_EQ(hash(8), 16921169381604339434u);
  EXPECT_EQ(hash(9), 8471974163824919394u);
  EXPECT_EQ(hash(15), 17514137373579004394u);
  EXPECT_EQ(hash(63), 4061470857350050649u);
}

TEST(SipHashTest, DependsOnBothHalvesOfTheSecret) {
  EXPECT_NE(siphash13({0, 0}, "text", 4), siphash13({1, 0}, "text", 4));
  EXPECT_NE(siphash13({0, 0}, "text", 4), siphash13({0, 1}, "text", 4));
}

// Abseil 20220623 hashes by multiplying pairs of 64-bit words. If the first word of a pair equals its public constant,
// the product is 0 whatever the second word is. So all these texts have the same hash with every seed.
std::string crafted(std::uint64_t number) {
  constexpr std::uint64_t kConstant = 0x13198a2e03707344;
  constexpr std::size_t kBefore = 2;  // bytes of the key before its text: a tag and the text's size
  std::string text(40, 'x');
  std::memcpy(&text[16 - kBefore], &kConstant, sizeof(kConstant));
  std::memcpy(&text[24 - kBefore], &number, sizeof(number));
  return text;
}
std::string plain(std::uint64_t number) {
  std::string text(40, 'x');
  std::memcpy(text.data(), &number, sizeof(number));
  return text;
}

std::vector<Key> keys_of(std::string (*text)(std::uint64_t)) {
  std::vector<Key> keys;
  for (std::uint64_t i = 0; i < 10000; ++i) keys.push_back(key(text(i)));
  return keys;
}

double seconds_to_insert(const std::vector<Key>& keys) {
  const auto begin = std::chrono::steady_clock::now();
  absl::flat_hash_set<Key> set;
  for (const Key& key : keys) set.insert(key);
  EXPECT_EQ(set.size(), keys.size());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(KeyHashTest, TextsThatCollideWithoutASecretCostNoMoreThanOthers) {
  const std::vector<Key> bad = keys_of(crafted), good = keys_of(plain);
  absl::flat_hash_set<std::size_t> hashes;
  for (const Key& key : bad) hashes.insert(key.hash());
  ASSERT_EQ(hashes.size(), bad.size());
  double of_bad = 1e9, of_good = 1e9;
  for (int i = 0; i < 5 || (i < 30 && of_bad > 2 * of_good); ++i) {
    of_bad = std::min(of_bad, seconds_to_insert(bad));
    of_good = std::min(of_good, seconds_to_insert(good));
  }
  EXPECT_LE(of_bad, 2 * of_good);
}

// Run by the next test in separate processes.
TEST(KeyHashTest, DISABLED_PrintsAHash) { std::printf("hash %zu\n", key("train_step", 8).hash()); }

TEST(KeyHashTest, DiffersFromProcessToProcess) {
  const auto hash_elsewhere = [program = std::filesystem::read_symlink("/proc/self/exe").string()] {
    const std::string command = program +
                                " --gtest_also_run_disabled_tests --gtest_output= "
                                "--gtest_filter=KeyHashTest.DISABLED_PrintsAHash";
    FILE* const output = popen(command.c_str(), "r");
    std::size_t hash = 0;
    for (char line[256]; std::fgets(line, sizeof(line), output) != nullptr;) std::sscanf(line, "hash %zu", &hash);
    EXPECT_EQ(pclose(output), 0);
    return hash;
  };
  const std::size_t hashes[] = {key("train_step", 8).hash(), hash_elsewhere(), hash_elsewhere()};
  EXPECT_NE(hashes[1], 0u);
  EXPECT_NE(hashes[0], hashes[1]);
  EXPECT_NE(hashes[0], hashes[2]);
  EXPECT_NE(hashes[1], hashes[2]);
}

}  // namespace
}  // namespace graphcache
