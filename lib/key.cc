#include "graphcache/key.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "key_bytes.h"
#include "siphash.h"

namespace graphcache {
namespace {

using namespace key_detail;  // NOLINT(google-build-using-namespace): the tags

SipSecret random_secret() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

// Key() and key() have no bytes. Their hash is 0, so that Key() needs no call.
size_t hash_of(const char* bytes, size_t size) {
  if (size == 0) return 0;
  static const SipSecret secret = random_secret();  // not a namespace constant, because keys may be made before main
  return siphash13(secret, bytes, size);
}

// Reads an encoding, of at most `max_depth` parts in each other, and makes a text of little more than `max_text` bytes.
// What is not an encoding ends at its first mistake. Such are bytes from outside, and the encoding of a
// graphcache_key() that threw, which has no end mark.
class Reader {
 public:
  // `parts` gets the parts that contain no others, unless it is null.
  explicit Reader(std::string_view bytes, size_t max_text = SIZE_MAX, int max_depth = std::numeric_limits<int>::max(),
                  std::vector<KeyPart>* parts = nullptr)
      : left_(bytes), max_text_(max_text), depth_(max_depth), parts_(parts) {}

  bool done() const { return left_.empty(); }
  // Whether no mistake has been found so far.
  bool is_valid() const { return is_valid_; }
  const std::string& text() const { return text_; }

  // The kind of the next part, or its mark. `number` is set for a kind, and `text` for kText. The parts that the part
  // contains follow. 0 if the encoding ends within the part.
  unsigned next(uint64_t& number, std::string_view& text) {
    if (done()) return fail();
    const unsigned tag = static_cast<unsigned char>(left_[0]);
    const size_t bytes = tag < kInteger ? 0 : tag & 0x0f;
    left_.remove_prefix(1);
    if (bytes > sizeof(number) || bytes > left_.size()) return fail();
    number = 0;
    std::memcpy(&number, left_.data(), bytes);
    left_.remove_prefix(bytes);
    if (tag < kInteger) return tag;
    if ((tag & 0xf0) == kText) {
      if (number > left_.size()) return fail();
      text = left_.substr(0, number);
      left_.remove_prefix(number);
    }
    return tag & 0xf0;
  }

  // Appends the next part to the text.
  void render();
  // Appends so many parts, or those before the end mark.
  void render_list(std::optional<uint64_t> count, const char* brackets) {
    text_ += brackets[0];
    for (uint64_t i = 0; count ? i < *count : !skip_end(); ++i) {
      if (done()) {
        fail();
        break;
      }
      if (i > 0) text_ += ", ";
      render();
    }
    text_ += brackets[1];
  }

 private:
  unsigned fail() {
    is_valid_ = false;
    left_ = {};
    return 0;
  }
  bool skip_end() {
    if (!left_.starts_with(static_cast<char>(kEnd))) return false;
    left_.remove_prefix(1);
    return true;
  }
  // Appends a part that contains no others.
  void add(KeyPart part, const absl::AlphaNum& text) {
    absl::StrAppend(&text_, text);
    if (parts_ != nullptr) parts_->push_back(std::move(part));
  }

  std::string_view left_;
  const size_t max_text_;
  int depth_;
  std::vector<KeyPart>* const parts_;
  std::string text_;
  bool is_valid_ = true;
};

void Reader::render() {
  using Kind = KeyPart::Kind;
  if (depth_-- == 0) fail();
  uint64_t number = 0;
  std::string_view text;
  const unsigned tag = next(number, text);
  const auto value = static_cast<int64_t>(number);
  switch (tag) {
    case kFalse:
    case kTrue:
      add({Kind::kBool, tag == kTrue, ""}, tag == kTrue ? "true" : "false");
      break;
    case kNullText:
      add({Kind::kNullText, 0, ""}, "null text");
      break;
    case kNoValue:
      add({Kind::kNoValue, 0, ""}, "none");
      break;
    case kSomeValue:
      render();
      break;
    case kDim3:
      render_list(3, "{}");
      break;
    case kLaunchConfig:
      text_ += '{';
      render_list(3, "{}");
      text_ += ", ";
      render_list(3, "{}");
      text_ += ", ";
      render();
      text_ += '}';
      break;
    case kBegin:
      render_list(std::nullopt, "{}");
      break;
    case kInteger:
      add({Kind::kInteger, value, ""}, number);
      break;
    case kNegativeInteger:
      add({Kind::kInteger, ~value, ""}, ~value);
      break;
    case kEnum:
      add({Kind::kEnum, value, ""}, absl::StrCat("enum ", number));
      break;
    case kNegativeEnum:
      add({Kind::kEnum, ~value, ""}, absl::StrCat("enum ", ~value));
      break;
    case kPointer:
      add({Kind::kAddress, value, ""}, absl::StrCat("0x", absl::Hex(number)));
      break;
    case kText: {
      const std::string_view shown = text.substr(0, max_text_);
      add({Kind::kText, 0, parts_ != nullptr ? std::string(text) : ""},
          absl::StrCat("\"", absl::Utf8SafeCHexEscape({shown.data(), shown.size()}), "\""));
      break;
    }
    case kSequence:
      render_list(number, "[]");
      break;
    case kTuple:
      render_list(number, "()");
      break;
    default:
      fail();
  }
  ++depth_;
  if (text_.size() > max_text_) left_ = {};
}

std::string_view cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
  size_t size = limit;
  while (size > 0 && limit - size < 3 && continues(size)) --size;
  return text.substr(0, continues(size) ? limit : size);  // four continuation bytes in a row are not UTF-8
}

}  // namespace

Key::Key(const char* bytes, size_t size) : Key(bytes, size, hash_of(bytes, size)) {}

Key::Key(const char* bytes, size_t size, size_t hash) : size_(size), hash_(hash) {
  if (is_inline()) {
    std::memcpy(inline_, bytes, kInlineBytes);
  } else {
    std::memset(inline_, 0, kInlineBytes);  // Because swap() copies all of it.
    heap_ = new char[size];
    std::memcpy(heap_, bytes, size);
  }
}

void Key::swap(Key& other) noexcept {
  std::swap(inline_, other.inline_);  // Includes heap_.
  std::swap(size_, other.size_);
  std::swap(hash_, other.hash_);
}

std::string_view Key::label() const {
  for (Reader reader(std::string_view(data(), size())); !reader.done();) {
    uint64_t number = 0;
    std::string_view text;
    if (reader.next(number, text) == kText) return cut(text, kLabelBytes);
  }
  return {};
}

std::vector<KeyPart> Key::parts() const {
  std::vector<KeyPart> parts;
  Reader reader({data(), size()}, SIZE_MAX, std::numeric_limits<int>::max(), &parts);
  while (!reader.done()) reader.render();
  return parts;
}

std::uint64_t KeyBytes::checksum(std::string_view text) { return siphash13({1, 2}, text.data(), text.size()); }

bool KeyBytes::read(std::string_view bytes, Key* key) {
  constexpr int kMostDepth = 64;  // limit for nested containers, which could exhaust the stack
  Reader reader(bytes, SIZE_MAX, kMostDepth);
  while (!reader.done()) reader.render();
  if (!reader.is_valid()) return false;
  std::string padded(bytes);
  padded.resize(std::max<size_t>(bytes.size(), Key::kInlineBytes));
  *key = Key(padded.data(), bytes.size());
  return true;
}

std::string Key::to_string(size_t max_bytes) const {
  Reader reader({data(), size()}, max_bytes);
  reader.render_list(std::nullopt, "()");
  const std::string& text = reader.text();
  return text.size() <= max_bytes ? text : std::string(cut(text, max_bytes)) + "...";
}

void Keyer::grow(size_t bytes) {
  const size_t used = static_cast<size_t>(at_ - begin_);
  const size_t capacity = std::max(2 * static_cast<size_t>(end_ - begin_), used + bytes);
  char* larger = new char[capacity];
  std::memcpy(larger, begin_, used);  // a key larger than the buffer is not inline and needs no zeros
  if (begin_ != buffer_) delete[] begin_;
  begin_ = larger;
  at_ = larger + used;
  end_ = larger + capacity;
}

}  // namespace graphcache
