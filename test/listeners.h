// Listeners of tests.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string_view>

#include "graphcache/listener.h"

namespace graphcache::test {

// Calls functions that a test may set.
class Functions : public Listener {
 public:
  Wants wants() const override { return wanted; }
  absl::Status begin(const CacheEvent& event) override { return on_begin ? on_begin(event) : absl::OkStatus(); }
  void end(const CacheEvent& event) override {
    if (on_end) on_end(event);
  }
  void message(std::string_view line) override {
    if (on_message) on_message(line);
  }

  Wants wanted;
  std::function<absl::Status(const CacheEvent&)> on_begin;
  std::function<void(const CacheEvent&)> on_end;
  std::function<void(std::string_view)> on_message;
};

}  // namespace graphcache::test
