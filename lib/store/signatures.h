// Numbers for the signatures of entries: equal signatures have the same number. Makes no CUDA call. Guarded by the
// store's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace graphcache {

class Signatures {
 public:
  struct Users {
    std::uint64_t number = 0;  // Counted from 1 and never reused.
    std::size_t count = 0;
  };
  using Known = std::pair<const std::string, Users>;

  // Must be removed as often as it was added.
  Known* add(const std::string& signature) {
    const auto [at, is_new] = known_.try_emplace(signature);
    if (is_new) at->second.number = ++last_number_;
    ++at->second.count;
    return &*at;
  }
  void remove(Known* known) {
    if (--known->second.count == 0) known_.erase(known_.find(known->first));
  }

  std::size_t size() const { return known_.size(); }

 private:
  std::unordered_map<std::string, Users> known_;
  std::uint64_t last_number_ = 0;
};

}  // namespace graphcache
