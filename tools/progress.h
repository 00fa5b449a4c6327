// A progress line for long work. It is written only to a terminal.
//
//   Progress progress("measuring");
//   for (std::size_t i = 0; i < all; ++i) {
//     progress.show(i, all);             // "measuring: 12 of 57, about 34 s left"
//     measure(i);
//   }
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

namespace graphcache::tools {

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), is_shown_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Reports that `done` of `all` parts are done. Writes at most ten lines a second.
  void show(std::size_t done, std::size_t all) {
    if (!is_shown_) return;
    const auto now = Clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    std::string line = what_ + ": " + std::to_string(done) + " of " + std::to_string(all);
    if (done > 0) {
      const double passed = std::chrono::duration<double>(now - begin_).count();
      const double left = passed / static_cast<double>(done) * static_cast<double>(all - std::min(done, all));
      line += ", about " + std::to_string(static_cast<long>(left + 0.5)) + " s left";
    }
    write("\r" + line + kRestOfLine);
  }
  // Removes the line, so that other output can follow. The next show() writes it again.
  void clear() {
    if (last_ != Clock::time_point()) write(std::string("\r") + kRestOfLine);
    last_ = {};
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr char kRestOfLine[] = "\x1b[K";  // erases the rest of the line

  static void write(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  const std::string what_;
  const bool is_shown_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace graphcache::tools
