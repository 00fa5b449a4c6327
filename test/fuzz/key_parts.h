// Random parts of keys, and their descriptions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "graphcache/key.h"
#include "input.h"

namespace graphcache::test {

// A part, which may be a tree. `meaning` describes it in the words of the contract: parts are equal if their meanings
// are. `style` selects a way of passing the same part, such as another integer type or another container.
struct Part {
  enum Kind {
    kInteger,
    kBool,
    kEnum,
    kText,
    kNullText,
    kPointer,
    kDim3,
    kLaunchConfig,
    kOptional,
    kTuple,
    kSequence,
    kNumbers,
    kUser,
    kKinds
  };
  Kind kind = kInteger;
  bool negative = false;
  std::uint64_t number = 0;  // the value; two's complement if it is negative
  std::string text;
  LaunchConfig config;
  std::vector<Part> parts;
  unsigned style = 0;
};

inline constexpr int kMaxDepth = 8;

inline std::uint64_t read_number(Input& input, bool* negative) {
  static constexpr std::uint64_t kEdges[] = {0,
                                             1,
                                             127,
                                             128,
                                             255,
                                             256,
                                             65535,
                                             65536,
                                             std::numeric_limits<std::int64_t>::max(),
                                             std::uint64_t{1} << 63,
                                             std::numeric_limits<std::uint64_t>::max()};
  const std::uint8_t how = input.byte();
  std::uint64_t number = how % 4 == 0   ? kEdges[how / 4 % std::size(kEdges)]
                         : how % 4 == 1 ? input.byte()
                         : how % 4 == 2 ? input.take<std::uint16_t>()
                                        : input.take<std::uint64_t>();
  *negative = (how & 0x80) != 0 && number != 0 && number <= std::uint64_t{1} << 63;
  return *negative ? ~number + 1 : number;
}

inline dim3 read_dim3(Input& input) {
  return dim3(input.byte(), input.take<std::uint16_t>(), input.take<std::uint32_t>());
}

inline std::string read_text(Input& input) {
  std::string text = input.text(input.below(48));
  if (input.chance(16)) {  // a key of many bytes, from few bytes of input
    text.resize(text.size() + 32 * input.byte(), 'x');
  }
  return text;
}

inline Part read_part(Input& input, unsigned style, int depth) {
  Part part;
  part.style = style + input.byte();
  part.kind = static_cast<Part::Kind>(input.below(depth < kMaxDepth ? Part::kKinds : Part::kOptional));
  std::size_t parts = 0;
  switch (part.kind) {
    case Part::kInteger:
    case Part::kEnum:
      part.number = read_number(input, &part.negative);
      break;
    case Part::kBool:
      part.number = input.byte() & 1;
      break;
    case Part::kText:
      part.text = read_text(input);
      break;
    case Part::kPointer:
      part.number = input.chance(32) ? 0 : input.take<std::uint64_t>();
      break;
    case Part::kDim3:
      part.config.grid = read_dim3(input);
      break;
    case Part::kLaunchConfig:
      part.config = {read_dim3(input), read_dim3(input), input.take<std::uint64_t>()};
      break;
    case Part::kOptional:
      parts = input.below(2);
      break;
    case Part::kNumbers:
      part.text = input.text(input.below(8));
      break;
    case Part::kTuple:
    case Part::kSequence:
    case Part::kUser:
      parts = input.below(5);
      break;
    case Part::kNullText:
    case Part::kKinds:
      break;
  }
  for (std::size_t i = 0; i < parts; ++i) part.parts.push_back(read_part(input, style, depth + 1));
  return part;
}

inline std::vector<Part> read_parts(Input input, unsigned style) {
  std::vector<Part> parts;
  while (!input.done()) parts.push_back(read_part(input, style, 0));
  return parts;
}

// ---- Descriptions of the parts ----

inline std::string number_in_words(const Part& part) {
  return part.negative ? std::to_string(static_cast<std::int64_t>(part.number)) : std::to_string(part.number);
}

inline std::string dim3_in_words(const dim3& value) {
  return std::to_string(value.x) + "," + std::to_string(value.y) + "," + std::to_string(value.z);
}

inline std::string meaning(const std::vector<Part>& parts, bool wrapped);

inline std::string meaning(const Part& part) {
  const std::string count = std::to_string(part.parts.size());
  switch (part.kind) {
    case Part::kInteger:
      return "integer " + number_in_words(part) + ";";
    case Part::kBool:
      return part.number != 0 ? "true;" : "false;";
    case Part::kEnum:
      return "enum " + number_in_words(part) + ";";
    case Part::kText:
      return "text " + std::to_string(part.text.size()) + ":" + part.text + ";";
    case Part::kNullText:
      return "null text;";
    case Part::kPointer:
      return "address " + std::to_string(part.number) + ";";
    case Part::kDim3:
      return "dim3 " + dim3_in_words(part.config.grid) + ";";
    case Part::kLaunchConfig:
      return "launch " + dim3_in_words(part.config.grid) + "/" + dim3_in_words(part.config.block) + "/" +
             std::to_string(part.config.shared_bytes) + ";";
    case Part::kOptional:
      return part.parts.empty() ? "none;" : "some(" + meaning(part.parts, true) + ")";
    case Part::kTuple:
      return "tuple " + count + "(" + meaning(part.parts, true) + ")";
    case Part::kSequence:
      return "sequence " + count + "(" + meaning(part.parts, true) + ")";
    case Part::kNumbers: {
      std::string all = "sequence " + std::to_string(part.text.size()) + "(";
      for (const unsigned char number : part.text) all += "integer " + std::to_string(number) + ";";
      return all + ")";
    }
    case Part::kUser:
      return meaning(part.parts, true);
    case Part::kKinds:
      break;
  }
  return "";
}

// Inside containers a Part is a user's type. At the top, and inside a user's type, it is just added.
inline std::string meaning(const std::vector<Part>& parts, bool wrapped) {
  std::string all;
  for (const Part& part : parts) all += wrapped ? "user(" + meaning(part) + ")" : meaning(part);
  return all;
}

// The first text at any depth, or null.
inline const std::string* first_text(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (part.kind == Part::kText) return &part.text;
    if (const std::string* inner = first_text(part.parts)) return inner;
  }
  return nullptr;
}

}  // namespace graphcache::test
