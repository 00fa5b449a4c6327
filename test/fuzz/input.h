// Shared by the fuzz targets: the fuzzer's bytes as decisions, and checks. A check that fails describes the error and
// ends the process, which is how libFuzzer detects it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace graphcache::test {

// Decisions. When the bytes are used up, all further ones are 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  bool done() const { return at_ == end_; }

  template <class T>
  T take() {
    T value = 0;
    const std::size_t size = std::min(sizeof value, static_cast<std::size_t>(end_ - at_));
    if (size != 0) std::memcpy(&value, at_, size);
    at_ += size;
    return value;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  bool chance(int in_256) { return byte() < in_256; }
  std::size_t below(std::size_t limit) { return byte() % limit; }

  // One of the values of a container or of an array.
  template <class Values>
  auto& pick(Values& values) {
    return *(std::begin(values) + static_cast<std::ptrdiff_t>(below(std::size(values))));
  }

  std::string text(std::size_t size) {
    const std::size_t taken = std::min(size, static_cast<std::size_t>(end_ - at_));
    std::string text(reinterpret_cast<const char*>(at_), taken);
    at_ += taken;
    return text;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

[[noreturn]] inline void give_up(const char* file, int line, const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n%s\n", file, line, what, detail.c_str());
  std::abort();
}

// FUZZ_CHECK(condition, details)
#define FUZZ_CHECK(condition, detail) \
  if (!(condition)) ::graphcache::test::give_up(__FILE__, __LINE__, #condition, detail)

}  // namespace graphcache::test
