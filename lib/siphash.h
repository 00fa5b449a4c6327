// SipHash-1-3 (Aumasson and Bernstein, 2012): a keyed hash. Without the secret key, nobody can construct texts that
// collide. libsodium has only the slower SipHash-2-4, and would be one more dependency for the forty lines below.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace graphcache {

struct SipSecret {
  std::uint64_t low, high;
};

inline std::uint64_t siphash13(const SipSecret& secret, const char* bytes, std::size_t size) {
  std::uint64_t a = secret.low ^ 0x736f6d6570736575, b = secret.high ^ 0x646f72616e646f6d;
  std::uint64_t c = secret.low ^ 0x6c7967656e657261, d = secret.high ^ 0x7465646279746573;
  const auto round = [&] {
    a += b, c += d;
    b = std::rotl(b, 13) ^ a, d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32);
    c += b, a += d;
    b = std::rotl(b, 17) ^ c, d = std::rotl(d, 21) ^ a;
    c = std::rotl(c, 32);
  };
  const auto mix = [&](std::uint64_t word) {
    d ^= word;
    round();
    a ^= word;
  };
  std::uint64_t word = 0;
  const char* const tail = bytes + size / sizeof(word) * sizeof(word);
  for (; bytes != tail; bytes += sizeof(word)) {
    std::memcpy(&word, bytes, sizeof(word));
    mix(word);
  }
  const std::size_t left = size % sizeof(word);
  if (size >= sizeof(word)) {
    // Loads the last eight bytes and shifts out those that are mixed already, because a copy of variable size would be
    // a function call.
    std::memcpy(&word, bytes + left - sizeof(word), sizeof(word));
    word = word >> 8 >> 8 * (sizeof(word) - 1 - left);
  } else if (left != 0) {
    std::memcpy(&word, bytes, left);
  }
  mix(word | std::uint64_t{size} << 56);
  c ^= 0xff;
  for (int i = 0; i < 3; ++i) round();
  return a ^ b ^ c ^ d;
}

}  // namespace graphcache
