// Which calls `fn` has made of its recorder: what can be said of the place where a capture broke.
#pragma once

#include <string>

namespace graphcache {

// A kernel's name as its source has it.
std::string readable(const char* mangled);

class RecorderCalls {
 public:
  // A call begins, or has succeeded.
  void begin(const char* name, const void* kernel) {
    if (!is_open_) before_ = now_;
    now_ = {name, kernel};
    is_open_ = true;
    ++count_;
  }
  void end() { is_open_ = false; }
  bool any() const { return count_ != 0; }

  // "between rec.launch of a and rec.memcpy (calls 3 and 4 of the recorder)": where the last thing went wrong.
  std::string place() const;

 private:
  struct Call {
    const char* name = nullptr;
    const void* kernel = nullptr;  // The host symbol of a launch.
  };
  static std::string text_of(const Call& call);

  Call before_, now_;
  bool is_open_ = false;
  int count_ = 0;
};

}  // namespace graphcache
