// Lists of different parts are different keys; tested with generated lists.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graphcache/key.h"
#include "key_support.h"

namespace graphcache {
namespace {

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
