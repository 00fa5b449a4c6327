// Records the calls that `fn` makes of its recorder, to say where a capture broke.
#pragma once

#include <string>

namespace graphcache {

// A kernel's name as written in its source.
std::string readable(const char* mangled);

class RecorderCalls {
 public:
  // begin() is called before a recorder call, end() when it has succeeded.
  void begin(const char* name, const void* kernel) {
    if (!is_open_) before_ = now_;
    now_ = {name, kernel};
    is_open_ = true;
    ++count_;
  }
  void end() { is_open_ = false; }
  bool any() const { return count_ != 0; }

  // "rec.launch of a", the last call that has begun.
  std::string last() const { return text_of(now_); }

  // Where the last error occurred: "between rec.launch of a and rec.memcpy (calls 3 and 4 of the recorder)".
  std::string place() const;

 private:
  struct Call {
    const char* name = nullptr;
    const void* kernel = nullptr;  // The host symbol of a launched kernel.
  };
  static std::string text_of(const Call& call);

  Call before_, now_;
  bool is_open_ = false;
  int count_ = 0;
};

}  // namespace graphcache
