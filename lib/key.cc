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

// Reads an encoding, to make a text of at most max_text bytes. The encoding of a graphcache_key() that threw has no end
// mark, so readers check done().
class Reader {
 public:
  Reader(const char* data, size_t size, size_t max_text = SIZE_MAX)
      : at_(data), end_(data + size), max_text_(max_text) {}

  bool done() const { return at_ == end_; }
  size_t max_text() const { return max_text_; }
  void stop_if_longer(const std::string& text) {
    if (text.size() > max_text_) at_ = end_;
  }

  // The kind of the next part, or its mark. `number` is set for a kind.
  unsigned next(uint64_t& number) {
    const unsigned tag = static_cast<unsigned char>(*at_++);
    if (tag < kInteger) return tag;
    const unsigned bytes = tag & 0x0f;
    number = 0;
    std::memcpy(&number, at_, bytes);
    at_ += bytes;
    return tag & 0xf0;
  }

  // Whether next() and a following text() stay within the encoding.
  bool may_next() const {
    const auto left = static_cast<size_t>(end_ - at_);
    if (left == 0) return false;
    const unsigned tag = static_cast<unsigned char>(*at_);
    if (tag < kInteger) return tag >= kFalse && tag <= kEnd;
    const size_t bytes = tag & 0x0f;
    if ((tag & 0xf0) > kTuple || bytes > sizeof(uint64_t) || left < 1 + bytes) return false;
    uint64_t number = 0;
    std::memcpy(&number, at_ + 1, bytes);
    return (tag & 0xf0) != kText || number <= left - 1 - bytes;
  }

  // The text after next() has returned kText.
  std::string_view text(uint64_t size) {
    const std::string_view result(at_, size);
    at_ += size;
    return result;
  }

  bool skip_end() {
    if (done() || static_cast<unsigned char>(*at_) != kEnd) return false;
    ++at_;
    return true;
  }

 private:
  const char* at_;
  const char* end_;
  size_t max_text_;
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
  for (uint64_t i = 0; i < count && !reader.done(); ++i) {
    if (i > 0) out += ", ";
    render(reader, out);
  }
  out += brackets[1];
}

void render_user_type(Reader& reader, std::string& out) {
  out += '{';
  for (bool first = true; !reader.done() && !reader.skip_end(); first = false) {
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
  if (reader.done()) return;
  uint64_t number = 0;
  switch (reader.next(number)) {
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
    case kText: {
      const std::string_view text = reader.text(number).substr(0, reader.max_text());
      absl::StrAppend(&out, "\"", absl::Utf8SafeCHexEscape({text.data(), text.size()}), "\"");
      break;
    }
    case kSequence:
      render_list(reader, number, "[]", out);
      break;
    case kTuple:
      render_list(reader, number, "()", out);
      break;
  }
  reader.stop_if_longer(out);
}

// Skips a part; returns false if it is incomplete.
bool skip(Reader& reader, int depth) {
  const auto skip_parts = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (!skip(reader, depth - 1)) return false;
    }
    return true;
  };
  if (depth == 0 || !reader.may_next()) return false;
  uint64_t number = 0;
  switch (reader.next(number)) {
    case kSomeValue:
      return skip_parts(1);
    case kDim3:
      return skip_parts(3);
    case kLaunchConfig:
      return skip_parts(7);
    case kSequence:
    case kTuple:
      return skip_parts(number);
    case kText:
      reader.text(number);
      return true;
    case kBegin:
      while (!reader.skip_end()) {
        if (!skip(reader, depth - 1)) return false;
      }
      return true;
    case kEnd:
      return false;
    default:
      return true;
  }
}

}  // namespace

Key::Key(const char* bytes, size_t size) : size_(size), hash_(hash_of(bytes, size)) {
  if (is_inline()) {
    std::memcpy(inline_, bytes, kInlineBytes);
  } else {
    heap_ = new char[size];
    std::memcpy(heap_, bytes, size);
  }
}

Key::Key(const Key& other) : size_(other.size_), hash_(other.hash_) {
  if (is_inline()) {
    std::memcpy(inline_, other.inline_, kInlineBytes);
  } else {
    heap_ = new char[size_];
    std::memcpy(heap_, other.heap_, size_);
  }
}

Key& Key::operator=(const Key& other) {
  if (this != &other) *this = Key(other);
  return *this;
}

Key& Key::operator=(Key&& other) noexcept {
  if (this != &other) {
    if (!is_inline()) delete[] heap_;
    take(other);
  }
  return *this;
}

void Key::take(Key& other) noexcept {
  size_ = other.size_;
  hash_ = other.hash_;
  if (is_inline()) {
    std::memcpy(inline_, other.inline_, kInlineBytes);
    return;
  }
  heap_ = other.heap_;
  std::memset(other.inline_, 0, kInlineBytes);
  other.size_ = 0;
  other.hash_ = 0;
}

std::string_view Key::label() const {
  for (Reader reader(data(), size()); !reader.done();) {
    uint64_t number = 0;
    if (reader.next(number) == kText) return cut(reader.text(number), kLabelBytes);
  }
  return {};
}

std::vector<KeyPart> Key::parts() const {
  std::vector<KeyPart> parts;
  using Kind = KeyPart::Kind;
  for (Reader reader(data(), size()); !reader.done();) {
    uint64_t number = 0;
    const unsigned tag = reader.next(number);
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
        parts.push_back({Kind::kText, 0, std::string(reader.text(number))});
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
  Reader reader(bytes.data(), bytes.size());
  while (!reader.done()) {
    if (!skip(reader, kMostDepth)) return false;
  }
  char inline_bytes[Key::kInlineBytes] = {};
  const bool is_inline = bytes.size() <= Key::kInlineBytes;
  if (is_inline && !bytes.empty()) std::memcpy(inline_bytes, bytes.data(), bytes.size());
  *key = Key(is_inline ? inline_bytes : bytes.data(), bytes.size());
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
