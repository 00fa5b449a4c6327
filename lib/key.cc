#include "graphcache/key.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>

#include "key_bytes.h"
#include "siphash.h"

namespace graphcache {
namespace {

using namespace key_detail;  // NOLINT(google-build-using-namespace): the tags

SipSecret random_secret() {
  SipSecret secret;
  if (getentropy(&secret, sizeof(secret)) == 0) return secret;
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

// Reads an encoding, of at most max_depth parts in each other, to make a text of at most max_text bytes. What is not an
// encoding ends at its first mistake. Such are bytes from outside, and the encoding of a graphcache_key() that threw,
// which has no end mark.
class Reader {
 public:
  Reader(const char* data, size_t size, size_t max_text = SIZE_MAX, int max_depth = std::numeric_limits<int>::max())
      : left_(data, size), max_text_(max_text), depth_(max_depth) {}

  bool done() const { return left_.empty(); }
  // Whether no mistake has been found so far.
  bool is_valid() const { return is_valid_; }
  unsigned fail() {
    is_valid_ = false;
    left_ = {};
    return 0;
  }
  size_t max_text() const { return max_text_; }

  // Called before and after each part.
  void enter() {
    if (depth_-- == 0) fail();
  }
  void leave(const std::string& text) {
    ++depth_;
    if (text.size() > max_text_) left_ = {};
  }

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

  // Whether kEnd follows, which is skipped, or nothing, which is a mistake.
  bool skip_end() {
    if (done()) {
      fail();
      return true;
    }
    if (static_cast<unsigned char>(left_[0]) != kEnd) return false;
    left_.remove_prefix(1);
    return true;
  }

 private:
  std::string_view left_;
  const size_t max_text_;
  int depth_;
  bool is_valid_ = true;
};

std::string_view cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
  size_t size = limit;
  while (size > 0 && limit - size < 3 && continues(size)) --size;
  return text.substr(0, continues(size) ? limit : size);  // four continuation bytes in a row are not UTF-8
}

void render(Reader& reader, std::string& out);

void render_list(Reader& reader, uint64_t count, const char* brackets, std::string& out) {
  out += brackets[0];
  uint64_t i = 0;
  for (; i < count && !reader.done(); ++i) {
    if (i > 0) out += ", ";
    render(reader, out);
  }
  if (i < count) reader.fail();
  out += brackets[1];
}

void render_user_type(Reader& reader, std::string& out) {
  out += '{';
  for (bool first = true; !reader.skip_end(); first = false) {
    if (!first) out += ", ";
    render(reader, out);
  }
  out += '}';
}

void render_launch_config(Reader& reader, std::string& out) {
  out += '{';
  render_list(reader, 3, "{}", out);
  out += ", ";
  render_list(reader, 3, "{}", out);
  out += ", ";
  render(reader, out);
  out += '}';
}

void render(Reader& reader, std::string& out) {
  reader.enter();
  uint64_t number = 0;
  std::string_view text;
  switch (reader.next(number, text)) {
    case kFalse:
      out += "false";
      break;
    case kTrue:
      out += "true";
      break;
    case kNullText:
      out += "null text";
      break;
    case kNoValue:
      out += "none";
      break;
    case kSomeValue:
      render(reader, out);
      break;
    case kDim3:
      render_list(reader, 3, "{}", out);
      break;
    case kLaunchConfig:
      render_launch_config(reader, out);
      break;
    case kBegin:
      render_user_type(reader, out);
      break;
    case kInteger:
      absl::StrAppend(&out, number);
      break;
    case kNegativeInteger:
      absl::StrAppend(&out, static_cast<int64_t>(~number));
      break;
    case kEnum:
      absl::StrAppend(&out, "enum ", number);
      break;
    case kNegativeEnum:
      absl::StrAppend(&out, "enum ", static_cast<int64_t>(~number));
      break;
    case kPointer:
      absl::StrAppend(&out, "0x", absl::Hex(number));
      break;
    case kText:
      text = text.substr(0, reader.max_text());
      absl::StrAppend(&out, "\"", absl::Utf8SafeCHexEscape({text.data(), text.size()}), "\"");
      break;
    case kSequence:
      render_list(reader, number, "[]", out);
      break;
    case kTuple:
      render_list(reader, number, "()", out);
      break;
    default:
      reader.fail();
  }
  reader.leave(out);
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
  for (Reader reader(data(), size()); !reader.done();) {
    uint64_t number = 0;
    std::string_view text;
    if (reader.next(number, text) == kText) return cut(text, kLabelBytes);
  }
  return {};
}

std::vector<KeyPart> Key::parts() const {
  std::vector<KeyPart> parts;
  using Kind = KeyPart::Kind;
  for (Reader reader(data(), size()); !reader.done();) {
    uint64_t number = 0;
    std::string_view text;
    const unsigned tag = reader.next(number, text);
    const auto value = static_cast<int64_t>(number);
    switch (tag) {
      case kFalse:
      case kTrue:
        parts.push_back({Kind::kBool, tag == kTrue, ""});
        break;
      case kNullText:
        parts.push_back({Kind::kNullText, 0, ""});
        break;
      case kNoValue:
        parts.push_back({Kind::kNoValue, 0, ""});
        break;
      case kInteger:
      case kNegativeInteger:
        parts.push_back({Kind::kInteger, tag == kInteger ? value : ~value, ""});
        break;
      case kEnum:
      case kNegativeEnum:
        parts.push_back({Kind::kEnum, tag == kEnum ? value : ~value, ""});
        break;
      case kPointer:
        parts.push_back({Kind::kAddress, value, ""});
        break;
      case kText:
        parts.push_back({Kind::kText, 0, std::string(text)});
        break;
      default:  // a container
        break;
    }
  }
  return parts;
}

std::uint64_t KeyBytes::checksum(std::string_view text) { return siphash13({1, 2}, text.data(), text.size()); }

bool KeyBytes::read(std::string_view bytes, Key* key) {
  constexpr int kMostDepth = 64;  // limit for nested containers, which could exhaust the stack
  Reader reader(bytes.data(), bytes.size(), SIZE_MAX, kMostDepth);
  std::string text;  // Nobody reads it.
  while (!reader.done()) render(reader, text);
  if (!reader.is_valid()) return false;
  std::string padded(bytes);
  padded.resize(std::max<size_t>(bytes.size(), Key::kInlineBytes));
  *key = Key(padded.data(), bytes.size());
  return true;
}

std::string Key::to_string(size_t max_bytes) const {
  std::string out;
  Reader reader(data(), size(), max_bytes);
  render_list(reader, std::numeric_limits<uint64_t>::max(), "()", out);
  if (out.size() <= max_bytes) return out;
  out.resize(cut(out, max_bytes).size());
  return out + "...";
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
