// Keys from random parts. Two keys are equal exactly if their parts are, by a description of the parts that does not
// use the key's encoding. Every key can be copied, moved, hashed and printed.

#include <absl/hash/hash.h>
#include <absl/types/optional.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/key.h"
#include "input.h"
#include "key_parts.h"

namespace graphcache::test {

void graphcache_key(Keyer& keyer, const Part& part);

namespace {

enum class Small : std::int8_t {};
enum class Wide : std::int64_t {};
enum class Big : std::uint64_t {};

template <class T>
bool add_as(Keyer& keyer, const Part& part) {
  const T value = static_cast<T>(part.number);
  const bool fits = static_cast<std::uint64_t>(value) == part.number && (value < 0) == part.negative;
  if (fits) keyer.add(value);
  return fits;
}

template <class E>
bool add_as_enum(Keyer& keyer, const Part& part) {
  const auto value = static_cast<std::underlying_type_t<E>>(part.number);
  const bool fits = static_cast<std::uint64_t>(value) == part.number && (value < 0) == part.negative;
  if (fits) keyer.add(static_cast<E>(value));
  return fits;
}

void add_integer(Keyer& keyer, const Part& part) {
  using Adder = bool (*)(Keyer&, const Part&);
  static constexpr Adder kAdders[] = {
      add_as<char>,          add_as<std::int8_t>, add_as<std::uint8_t>,       add_as<short>,
      add_as<std::uint16_t>, add_as<int>,         add_as<unsigned>,           add_as<long>,
      add_as<unsigned long>, add_as<long long>,   add_as<unsigned long long>, add_as<wchar_t>};
  for (unsigned i = 0; i < std::size(kAdders); ++i) {
    if (kAdders[(part.style + i) % std::size(kAdders)](keyer, part)) return;
  }
}

void add_enum(Keyer& keyer, const Part& part) {
  if (part.style % 2 == 0 && add_as_enum<Small>(keyer, part)) return;
  if (!add_as_enum<Wide>(keyer, part)) add_as_enum<Big>(keyer, part);
}

void add_text(Keyer& keyer, const Part& part) {
  const bool has_nul = part.text.find('\0') != std::string::npos;
  char array[64] = {};
  if (part.style % 5 == 0 && !has_nul) {
    keyer.add(part.text.c_str());
  } else if (part.style % 5 == 1 && !has_nul && part.text.size() <= sizeof array) {
    std::copy(part.text.begin(), part.text.end(), array);  // a full array has no NUL
    keyer.add(array);
  } else if (part.style % 5 == 2) {
    keyer.add(std::string_view(part.text));
  } else if (part.style % 5 == 3) {
    keyer.add(absl::string_view(part.text));
  } else {
    keyer.add(part.text);
  }
}

void add_pointer(Keyer& keyer, const Part& part) {
  if (part.number == 0 && part.style % 2 == 0) {
    keyer.add(nullptr);
  } else if (part.style % 4 == 1) {
    keyer.add(reinterpret_cast<float*>(part.number));
  } else if (part.style % 4 == 2) {
    keyer.add(reinterpret_cast<cudaStream_t>(part.number));
  } else if (part.style % 4 == 3) {
    keyer.add(reinterpret_cast<void (*)(int)>(part.number));
  } else {
    keyer.add(reinterpret_cast<const void*>(part.number));
  }
}

void add_optional(Keyer& keyer, const Part& part) {
  if (part.style % 2 == 0) {
    keyer.add(part.parts.empty() ? std::optional<Part>() : part.parts[0]);
  } else {
    keyer.add(part.parts.empty() ? absl::optional<Part>() : part.parts[0]);
  }
}

void add_tuple(Keyer& keyer, const Part& part) {
  const std::vector<Part>& p = part.parts;
  if (p.empty()) keyer.add(std::tuple<>());
  if (p.size() == 1) keyer.add(std::tuple(p[0]));
  if (p.size() == 2 && part.style % 2 == 0) keyer.add(std::pair(p[0], p[1]));
  if (p.size() == 2 && part.style % 2 == 1) keyer.add(std::tuple(p[0], p[1]));
  if (p.size() == 3) keyer.add(std::tuple(p[0], std::cref(p[1]).get(), p[2]));
  if (p.size() == 4) keyer.add(std::tuple(p[0], p[1], p[2], p[3]));
}

void add_sequence(Keyer& keyer, const Part& part) {
  const std::vector<Part>& p = part.parts;
  if (part.style % 4 == 0) {
    keyer.add(std::span<const Part>(p));
  } else if (part.style % 4 == 1) {
    keyer.add(absl::Span<const Part>(p));
  } else if (part.style % 4 == 2 && p.size() == 2) {
    const Part array[] = {p[0], p[1]};
    keyer.add(array);
  } else if (part.style % 4 == 3 && p.size() == 2) {
    keyer.add(std::array<Part, 2>{p[0], p[1]});
  } else {
    keyer.add(p);
  }
}

void add_numbers(Keyer& keyer, const Part& part) {
  const std::vector<unsigned char> numbers(part.text.begin(), part.text.end());
  if (part.style % 3 == 0) {
    keyer.add(std::vector<int>(numbers.begin(), numbers.end()));
  } else if (part.style % 3 == 1) {
    keyer.add(absl::Span<const unsigned char>(numbers));
  } else {
    keyer.add(std::vector<long>(numbers.begin(), numbers.end()));
  }
}

void add(Keyer& keyer, const Part& part) {
  switch (part.kind) {
    case Part::kInteger:
      return add_integer(keyer, part);
    case Part::kBool:
      return void(keyer.add(part.number != 0));
    case Part::kEnum:
      return add_enum(keyer, part);
    case Part::kText:
      return add_text(keyer, part);
    case Part::kNullText:
      return void(keyer.add(static_cast<const char*>(nullptr)));
    case Part::kPointer:
      return add_pointer(keyer, part);
    case Part::kDim3:
      return void(keyer.add(part.config.grid));
    case Part::kLaunchConfig:
      return void(keyer.add(part.config));
    case Part::kOptional:
      return add_optional(keyer, part);
    case Part::kTuple:
      return add_tuple(keyer, part);
    case Part::kSequence:
      return add_sequence(keyer, part);
    case Part::kNumbers:
      return add_numbers(keyer, part);
    case Part::kUser:
      for (const Part& inner : part.parts) keyer.add(inner);
      return;
    case Part::kKinds:
      return;
  }
}

}  // namespace

void graphcache_key(Keyer& keyer, const Part& part) { add(keyer, part); }

namespace {

Key key_of(const std::vector<Part>& parts) {
  Keyer keyer;
  for (const Part& part : parts) add(keyer, part);
  return std::move(keyer).finish();
}

// ---- The laws ----

void check_one(const Key& key, const std::vector<Part>& parts, const std::string& words) {
  const std::string* text = first_text(parts);
  const std::string label(key.label());
  const std::string whole = text != nullptr ? *text : "";
  FUZZ_CHECK(whole.compare(0, label.size(), label) == 0, words);
  FUZZ_CHECK(label.size() <= Key::kLabelBytes, words);
  FUZZ_CHECK(label.size() == whole.size() || label.size() + 3 >= std::min(whole.size(), Key::kLabelBytes), words);

  const std::string shown = key.to_string();
  FUZZ_CHECK(shown.size() >= 2 && shown.front() == '(' && shown.back() == ')', shown);
  FUZZ_CHECK(shown.find('\0') == std::string::npos, shown);

  Key copy = key;
  FUZZ_CHECK(copy == key && copy.hash() == key.hash() && copy.to_string() == shown, words);
  const Key moved = std::move(copy);
  FUZZ_CHECK(moved == key && moved.label() == label, words);
  copy = moved;
  FUZZ_CHECK(copy == key, words);
}

void check(const std::uint8_t* data, std::size_t size) {
  // Two lists from nearly the same bytes: one is altered, and parts that can be passed in several ways are passed in
  // another.
  Input head(data, size);
  const std::size_t place = head.take<std::uint16_t>();
  const std::uint8_t change = head.byte();
  const unsigned style = head.byte();
  if (size <= 4) return;
  std::vector<std::uint8_t> altered(data + 4, data + size);
  altered[place % altered.size()] ^= change;

  const std::vector<Part> parts = read_parts(Input(data + 4, size - 4), 0);
  const std::vector<Part> others = read_parts(Input(altered.data(), altered.size()), style);
  const std::string words = meaning(parts, false);
  const std::string other_words = meaning(others, false);
  const Key key = key_of(parts);
  const Key other = key_of(others);
  check_one(key, parts, words);
  check_one(other, others, other_words);

  FUZZ_CHECK((key == other) == (words == other_words), words + "\n" + other_words);
  FUZZ_CHECK((key != other) == (words != other_words), words + "\n" + other_words);
  if (words == other_words) {
    FUZZ_CHECK(key.hash() == other.hash(), words);
    FUZZ_CHECK(absl::Hash<Key>()(key) == absl::Hash<Key>()(other), words);
    FUZZ_CHECK(key.to_string() == other.to_string(), words);
  }
}

}  // namespace
}  // namespace graphcache::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  graphcache::test::check(data, size);
  return 0;
}
