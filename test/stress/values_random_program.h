// The random programs of values_random_test.cc, the memory that they use, and the values that they are given.
#pragma once

#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "launch.h"
#include "support.h"
#include "values_random_kernels.h"

namespace graphcache::test::values_random {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t word() { return engine_(); }
  int below(int count) { return static_cast<int>(engine_() % static_cast<unsigned>(count)); }
  bool one_in(int count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

// ---- Memory ----

// Pools never overlap. A node writes to a pool of its own lane, and a copy reads from the lane's other pool, so lanes
// do not race and copies do not overlap. A pool has some blocks of kWords in each area.
constexpr int kLanes = 2;
constexpr int kPools = 2 * kLanes;
constexpr std::array<int, kAreas> kBlocks = {5, 2, 1, 1};  // Without a last one that places may reach into.
enum Area { kDevice, kOtherDevice, kPinned, kManaged, kNull };

struct Place {
  int area = kNull, block = 0;
  bool is_shifted = false;  // By 64 bytes, which gives other low bits.
  friend bool operator==(const Place& a, const Place& b) {
    return a.area == b.area && (a.area == kNull || (a.block == b.block && a.is_shifted == b.is_shifted));
  }
};

// The areas, filled by a seed. There are two: one for the cache, one for direct runs.
class Memory {
 public:
  Memory() {
    for (int area = 0; area < kAreas; ++area) {
      areas_.words[area] = static_cast<unsigned>(kPools * (kBlocks[area] + 1)) * kWords;
      const std::size_t bytes = areas_.words[area] * sizeof(unsigned) + kAlignment;
      CUDA_OK(area == kPinned    ? cudaMallocHost(&allocated_[area], bytes)
              : area == kManaged ? cudaMallocManaged(&allocated_[area], bytes, cudaMemAttachGlobal)
                                 : cudaMalloc(&allocated_[area], bytes));
      const auto address = reinterpret_cast<std::uintptr_t>(allocated_[area]);
      areas_.at[area] = reinterpret_cast<unsigned*>((address + kAlignment - 1) / kAlignment * kAlignment);
    }
  }
  ~Memory() {
    for (int area = 0; area < kAreas; ++area)
      area == kPinned ? cudaFreeHost(allocated_[area]) : cudaFree(allocated_[area]);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // The first areas; the others seem to be empty.
  Areas areas(int count) const {
    Areas areas = areas_;
    for (int area = count; area < kAreas; ++area) areas.words[area] = 0;
    return areas;
  }
  unsigned* at(int pool, const Place& place) const {
    if (place.area == kNull) return nullptr;
    const int block = pool * (kBlocks[place.area] + 1) + place.block;
    return areas_.at[place.area] + static_cast<unsigned>(block) * kWords + (place.is_shifted ? 16 : 0);
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  Areas areas_ = {};
  std::array<void*, kAreas> allocated_ = {};
};

// ---- Values ----

enum class Type { kFloat, kDouble, kHalf, kBfloat16, kPointer };

// A value as a test chooses it. A pointer is a place in its pool, so that both memories have it.
struct Chosen {
  double number = 0;
  Place place;
};
// A value as `fn` gets it. The number is exact, whatever its type.
struct Passed {
  double number = 0;
  unsigned short half = 0;  // The bits of a 2-byte float.
  unsigned* pointer = nullptr;
};

// The types of the values of a key, and the pools of its pointers.
struct Variable {
  Type type;
  int pool;
  bool is_number() const { return type != Type::kPointer; }
  bool is_half() const { return type == Type::kHalf || type == Type::kBfloat16; }
};

// ---- Programs ----

struct Argument {
  enum class From {
    kConstant,
    kValue,    // As it is, or converted.
    kInverse,  // Derived: 1/x.
    kBoth,     // Derived: a sum of two values, as 64 bits, in which neither absorbs the other.
    kBehind,   // Derived: a pointer plus a constant. The sum is never another value's pointer.
  };
  From from = From::kConstant;
  int value = 0, other = 0;
  double number = 0;  // The constant.
  int pool = 0;
  Place place;
};

// A property of values that is part of their identity, so `fn` may decide by it.
struct Condition {
  enum class Of { kNothing, kNull, kZero, kOne, kLowBits, kEqual };
  Of of = Of::kNothing;
  int value = 0, other = 0;
  bool skips = false;  // Whether the node is left out; otherwise it has another kernel.

  bool holds(absl::Span<const Passed> values) const {
    if (of == Of::kNothing) return false;
    const Passed &a = values[value], &b = values[other];
    return of == Of::kNull      ? a.pointer == nullptr
           : of == Of::kZero    ? a.number == 0
           : of == Of::kOne     ? a.number == 1
           : of == Of::kLowBits ? reinterpret_cast<std::uintptr_t>(a.pointer) % 256 != 0
                                : a.pointer == b.pointer;
  }
};

struct Node {
  enum class Kind { kMix, kMixSmall, kRecord, kCopy, kSet, kSetRows, kCopyRows };
  Kind kind = Kind::kMix;
  int lane = 0;
  Condition condition;
  Argument out, in, f, d, half, word;
};

struct Style {
  bool derives = false;    // Some arguments are derived.
  bool decides = false;    // Some nodes depend on the identity of values.
  bool has_noise = false;  // Padding differs from call to call.
  bool forks = false;
  int areas = 1;  // Where constants and values point to.
};

// The work of a key. `fn` calls enqueue().
class Program {
 public:
  // Programs of one structure differ in their constants. Some constants are the key's first values.
  Program(const Style& style, absl::Span<const Variable> variables, absl::Span<const Chosen> first_values,
          std::uint64_t structure, std::uint64_t constants);

  cudaError_t enqueue(cudaStream_t stream, cudaStream_t forked, const Memory& memory,
                      absl::Span<const Passed> values) const;

 private:
  class Arguments;
  static cudaError_t enqueue(const Node& node, cudaStream_t stream, const Arguments& arguments, unsigned char padding);

  Style style_;
  std::vector<Node> nodes_;
  Event fork_, join_;
  mutable unsigned char padding_ = 0;
};

// Numbers that every type but bfloat16 has exactly, and whose inverses differ. Some are chosen often, so that values
// coincide with each other and with constants.
inline double random_number(Random& random, Type type) {
  if (random.one_in(6)) return 2 + random.below(3);
  return type == Type::kBfloat16 ? 2 + random.below(250) : 2 + random.below(1900) / 8.0;
}
inline Place random_place(Random& random, int areas) {
  const int area = random.one_in(3) ? random.below(areas) : 0;
  return {area, random.below(kBlocks[static_cast<std::size_t>(area)]), false};
}

// ---- How a program is made ----

// Draws arguments. Both sequences go on equally for programs of one structure.
class Draw {
 public:
  Draw(const Style& style, absl::Span<const Variable> variables, absl::Span<const Chosen> first_values,
       std::uint64_t structure, std::uint64_t constants)
      : structure(structure), style_(style), variables_(variables), first_(first_values), constants_(constants) {}

  template <class IsFit>
  Argument number(const IsFit& is_fit, Argument::From derived) {
    Argument argument;
    argument.number = random_number(constants_, Type::kBfloat16);
    const bool is_value = structure.below(4) != 0, is_derived = structure.one_in(6) && style_.derives;
    argument.value = one([&](const Variable& v) { return is_derived ? v.is_number() : is_fit(v); });
    argument.other = one([](const Variable& v) { return v.is_number(); });
    if (argument.value < 0) return argument;
    if (is_value) argument.from = is_derived ? derived : Argument::From::kValue;
    if (constants_.one_in(4)) argument.number = first_[argument.value].number;
    return argument;
  }
  Argument pointer(int pool) {
    Argument argument;
    argument.pool = pool;
    argument.place = random_place(constants_, style_.areas);
    const bool is_value = structure.below(4) != 0, is_derived = structure.one_in(8) && style_.derives;
    argument.value = one([&](const Variable& v) { return v.type == Type::kPointer && v.pool == pool; });
    if (argument.value < 0) return argument;
    if (is_value) argument.from = is_derived ? Argument::From::kBehind : Argument::From::kValue;
    if (constants_.one_in(4)) argument.place = first_[argument.value].place;
    return argument;
  }
  Condition condition() {
    using Of = Condition::Of;
    Condition condition;
    condition.of = static_cast<Of>(1 + structure.below(5));
    const bool of_number = condition.of == Of::kZero || condition.of == Of::kOne;
    const auto is_fit = [&](const Variable& v) { return v.is_number() == of_number; };
    condition.value = one(is_fit);
    condition.other = one(is_fit);
    condition.skips = structure.one_in(2);
    if (!style_.decides || condition.value < 0 || structure.one_in(2)) condition.of = Of::kNothing;
    return condition;
  }

  Random structure;

 private:
  // A value that fits, or -1.
  template <class IsFit>
  int one(const IsFit& is_fit) {
    const int begin = structure.below(static_cast<int>(variables_.size()));
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      const std::size_t at = (static_cast<std::size_t>(begin) + i) % variables_.size();
      if (is_fit(variables_[at])) return static_cast<int>(at);
    }
    return -1;
  }

  const Style& style_;
  absl::Span<const Variable> variables_;
  absl::Span<const Chosen> first_;
  Random constants_;
};

inline Program::Program(const Style& style, absl::Span<const Variable> variables, absl::Span<const Chosen> first_values,
                        std::uint64_t structure, std::uint64_t constants)
    : style_(style) {
  Draw draw(style, variables, first_values, structure, constants);
  nodes_.resize(static_cast<std::size_t>(1 + draw.structure.below(12)));
  for (Node& node : nodes_) {
    const int kind = draw.structure.below(style.derives ? 12 : 11);
    node.kind = kind < 3    ? Node::Kind::kMix
                : kind < 6  ? Node::Kind::kMixSmall
                : kind < 8  ? Node::Kind::kRecord
                : kind < 9  ? Node::Kind::kCopy
                : kind < 10 ? Node::Kind::kSet
                : kind < 11 ? Node::Kind::kSetRows
                            : Node::Kind::kCopyRows;
    const int lane = draw.structure.below(kLanes);
    node.lane = style.forks && &node != nodes_.data() ? lane : 0;  // There is always work on the stream itself.
    const int half = draw.structure.below(2);                      // Which of the lane's pools is written.
    const bool is_same =
        node.kind != Node::Kind::kCopy && node.kind != Node::Kind::kCopyRows && draw.structure.one_in(2);
    node.out = draw.pointer(2 * node.lane + half);
    node.in = draw.pointer(2 * node.lane + (is_same ? half : 1 - half));
    using From = Argument::From;
    node.f = draw.number([](const Variable& v) { return v.is_number(); }, From::kInverse);
    // A 2-byte float as a double is derived.
    const bool takes_halves = style.derives;
    node.d =
        draw.number([&](const Variable& v) { return v.is_number() && (takes_halves || !v.is_half()); }, From::kInverse);
    node.half = draw.number([](const Variable& v) { return v.is_half(); }, From::kConstant);
    node.word = draw.number([](const Variable&) { return false; }, From::kBoth);
    node.condition = draw.condition();
  }
  if (nodes_[0].kind >= Node::Kind::kCopy) nodes_[0].kind = Node::Kind::kMix;
  nodes_[0].condition.skips = false;
}

// ---- How it runs ----

class Program::Arguments {
 public:
  Arguments(const Memory& memory, absl::Span<const Passed> values) : values(values), memory_(memory) {}

  template <class T>
  T number(const Argument& of) const {
    if (of.from == Argument::From::kConstant) return static_cast<T>(of.number);
    const auto value = static_cast<T>(values[of.value].number);
    return of.from == Argument::From::kInverse ? T(1) / value : value;
  }
  unsigned short half(const Argument& of) const {
    return of.from == Argument::From::kValue ? values[of.value].half : static_cast<unsigned short>(bits_of(of));
  }
  unsigned long long word(const Argument& of) const {
    if (of.from != Argument::From::kBoth) return static_cast<unsigned long long>(bits_of(of));
    unsigned long long a, b;
    std::memcpy(&a, &values[of.value].number, sizeof a);
    std::memcpy(&b, &values[of.other].number, sizeof b);
    return a * 0x9e3779b97f4a7c15u + b * 0xd1b54a32d192ed03u;
  }
  unsigned* pointer(const Argument& of) const {
    if (of.from == Argument::From::kConstant) return memory_.at(of.pool, of.place);
    unsigned* const value = values[of.value].pointer;
    return of.from == Argument::From::kBehind && value != nullptr ? value + 20 : value;
  }

  const absl::Span<const Passed> values;

 private:
  // Some bits of a constant, which may be negative.
  static long long bits_of(const Argument& of) { return static_cast<long long>(of.number * 8); }

  const Memory& memory_;
};

inline cudaError_t Program::enqueue(cudaStream_t stream, cudaStream_t forked, const Memory& memory,
                                    absl::Span<const Passed> values) const {
  const Arguments arguments(memory, values);
  cudaError_t first = cudaSuccess;
  const auto note = [&](cudaError_t error) { first = first != cudaSuccess ? first : error; };
  if (style_.forks) {
    note(cudaEventRecord(fork_, stream));
    note(cudaStreamWaitEvent(forked, fork_, 0));
  }
  for (const Node& node : nodes_) {
    if (style_.has_noise) ++padding_;
    note(enqueue(node, node.lane == 0 ? stream : forked, arguments, padding_));
  }
  if (style_.forks) {
    note(cudaEventRecord(join_, forked));
    note(cudaStreamWaitEvent(stream, join_, 0));
  }
  return first;
}

inline cudaError_t Program::enqueue(const Node& node, cudaStream_t stream, const Arguments& arguments,
                                    unsigned char padding) {
  const bool holds = node.condition.holds(arguments.values);
  if (holds && node.condition.skips) return cudaSuccess;
  unsigned *const out = arguments.pointer(node.out), *const in = arguments.pointer(node.in);
  const auto f = arguments.number<float>(node.f);
  const auto d = arguments.number<double>(node.d);
  const unsigned short half = arguments.half(node.half);
  switch (node.kind) {
    case Node::Kind::kMix:
      return launch(holds ? mix_otherwise : mix, 1, kWords, stream, out, in, f, d);
    case Node::Kind::kMixSmall:
      return launch(holds ? mix_small_otherwise : mix_small, 1, kWords, stream, in, half, f, out,
                    arguments.word(node.word));
    case Node::Kind::kRecord: {
      Record record;
      std::memset(static_cast<void*>(&record), padding, sizeof record);
      record.letter = 'r';
      record.half = half;
      record.in = in;
      record.f = f;
      record.out = out;
      record.d = d;
      void* parameters[] = {&record};  // By address, so that the padding is kept.
      return cudaLaunchKernel(reinterpret_cast<const void*>(holds ? mix_record_otherwise : mix_record), 1, kWords,
                              parameters, 0, stream);
    }
    case Node::Kind::kCopy:  // Null is part of the identity.
      if (out == nullptr || in == nullptr) return cudaSuccess;
      return cudaMemcpyAsync(out, in, kWords * sizeof(unsigned), cudaMemcpyDefault, stream);
    case Node::Kind::kSet:
      return out == nullptr ? cudaSuccess : cudaMemsetAsync(out, 7, kWords * sizeof(unsigned) / 2, stream);
    case Node::Kind::kSetRows: {
      constexpr std::size_t kPitch = kWords * sizeof(unsigned) / 2;
      return out == nullptr ? cudaSuccess : cudaMemset2DAsync(out, kPitch, 9, kPitch / 4, 2, stream);
    }
    case Node::Kind::kCopyRows: {  // A pointer in it is derived.
      constexpr std::size_t kPitch = kWords * sizeof(unsigned) / 2;
      if (out == nullptr || in == nullptr) return cudaSuccess;
      return cudaMemcpy2DAsync(out, kPitch, in, kPitch, kPitch / 4, 2, cudaMemcpyDefault, stream);
    }
  }
  return cudaErrorUnknown;
}

}  // namespace graphcache::test::values_random
