#include "policies.h"

#include <list>
#include <map>
#include <utility>

namespace graphcache::sim {
namespace {

class Dictionary : public SimPolicy {
 public:
  explicit Dictionary(Ledger& ledger) : ledger_(ledger) {}

  void run(const Run& run) override {
    if (const auto found = places_.find(run.key); found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
    } else {
      if (!make_room(run.key)) return ledger_.run_directly();
      ledger_.capture(run.key);
      order_.emplace_front(run.key, ledger_.instantiate(run.key, Kind::kPlain));
      places_[run.key] = order_.begin();
    }
    ledger_.launch(order_.front().second);
  }

 private:
  using Order = std::list<std::pair<KeyId, ExecutableId>>;

  // Destroys the least recently used executables that no other thread uses. Returns false if these are too few.
  bool make_room(KeyId key) {
    for (auto at = order_.end(); !ledger_.has_room(key);) {
      if (at == order_.begin()) return false;
      if (ledger_.is_in_use((--at)->second)) continue;
      ledger_.destroy(at->second);
      places_.erase(at->first);
      at = order_.erase(at);
    }
    return true;
  }

  Ledger& ledger_;
  Order order_;
  std::map<KeyId, Order::iterator> places_;
};

}  // namespace

const NamedPolicy& dictionary() {
  static const NamedPolicy policy = {
      "dictionary", [](Ledger& ledger) -> std::unique_ptr<SimPolicy> { return std::make_unique<Dictionary>(ledger); }};
  return policy;
}

}  // namespace graphcache::sim
