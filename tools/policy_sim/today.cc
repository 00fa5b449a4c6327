#include "today.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "../../lib/cuda/costs.h"

namespace graphcache::sim {
namespace {

enum class Prefers { kTotalTime, kDeviceTime };

// As test/policy_model.h, without pins, refusals, bytes and templates that leave.
class Today : public SimPolicy {
 public:
  Today(Ledger& ledger, Prefers prefers)
      : ledger_(ledger), prefers_(prefers), keys_(ledger.trace().graphs.size()), period_(period(ledger.budget())) {}

  void run(const Run& run) override {
    Key& key = keys_[run.key];
    key.often = often(key) + 1;
    key.used = ++uses_;
    key.period = uses_ / period_;
    if (!key.live) obtain(run);
    ledger_.launch(key.executable);
  }

 private:
  static constexpr KeyId kNobody = ~KeyId{0};

  struct Key {
    bool captured = false, live = false;
    Kind kind = Kind::kPlain;
    ExecutableId executable = 0;
    std::uint64_t used = 0, often = 0, period = 0, rents_from = 0;
    Cost paid = 0;
    std::uint64_t stream = 0;
    bool on_several = false;
    std::vector<std::uint64_t> left;
  };
  using Family = std::pair<std::uint64_t, std::uint64_t>;
  using Class = std::pair<Family, std::uint64_t>;
  static constexpr std::uint64_t kAnyStream = ~std::uint64_t{0};

  static std::uint64_t period(std::size_t budget) {
    std::uint64_t uses = 8;
    while (uses < 8 * std::min<std::uint64_t>(budget, 1 << 20)) uses *= 2;
    return uses;
  }
  std::uint64_t often(const Key& key) const {
    const std::uint64_t ago = uses_ / period_ - key.period;
    return ago < 32 ? key.often >> ago : 0;
  }
  Family family_of(KeyId k) const { return {ledger_.graph(k).signature, keys_[k].stream}; }
  Class class_of(KeyId k) const { return {family_of(k), ledger_.graph(k).table_class}; }
  std::size_t live() const { return live_.size(); }
  bool fits() const { return live() < ledger_.budget(); }
  std::size_t updater_nodes() const {
    return static_cast<std::size_t>(
        std::count_if(live_.begin(), live_.end(), [&](KeyId k) { return keys_[k].kind != Kind::kPlain; }));
  }
  bool has_room_for_updater_node() const { return updater_nodes() < std::max<std::size_t>(ledger_.budget() / 2, 1); }

  template <class F>
  KeyId oldest(F&& is) const {
    KeyId found = kNobody;
    for (const KeyId k : live_) {
      if (is(k) && (found == kNobody || keys_[k].used < keys_[found].used)) found = k;
    }
    return found;
  }
  KeyId victim() const {
    const KeyId early = oldest([&](KeyId k) { return keys_[k].kind == Kind::kPlain; });
    return early != kNobody ? early : oldest([](KeyId) { return true; });
  }

  void set_live(KeyId k, bool is) {
    keys_[k].live = is;
    if (is) live_.push_back(k);
    if (!is) live_.erase(std::find(live_.begin(), live_.end(), k));
    if (const auto spare = spare_.find(family_of(k)); !is && spare != spare_.end() && spare->second == k) {
      spare_.erase(spare);
    }
  }

  void find_family(KeyId k, std::uint64_t stream) {
    Key& key = keys_[k];
    if (key.stream == kAnyStream || key.stream == stream) return;
    --members_[class_of(k)];
    key.stream = stream;
    ++members_[class_of(k)];
  }
  KeyId table_of(KeyId k) const {
    return oldest([&](KeyId other) { return keys_[other].kind == Kind::kTable && class_of(other) == class_of(k); });
  }
  KeyId lender_for(KeyId k) const {
    if (const auto spare = spare_.find(family_of(k)); spare != spare_.end()) return spare->second;
    if (const KeyId table = table_of(k); table != kNobody) return table;
    return fits() ? kNobody : oldest([&](KeyId other) { return family_of(other) == family_of(k); });
  }
  Cost update(KeyId from, KeyId k) const {
    const Graph& graph = ledger_.graph(k);
    return price::update(
        graph, ledger_.graph(from).table_class == graph.table_class ? graph.difference : Difference::kKernels);
  }
  bool wants_table(KeyId k, KeyId lender) {
    const Graph& graph = ledger_.graph(k);
    if (prefers_ == Prefers::kDeviceTime || lender == kNobody || keys_[lender].kind == Kind::kTable) return false;
    if (graph.table_class == 0 || members_[class_of(k)] < 2) return false;
    const Cost paid = keys_[lender].kind == Kind::kSlots ? costs::buy(graph.nodes) : update(lender, k);
    const Cost by_set = costs::switch_row(graph.nodes);
    Cost& rent = rents_[class_of(k)];
    rent += paid > by_set ? paid - by_set : 0;
    if (rent <= costs::buy_table(graph.nodes)) return false;
    if (fits()) return has_room_for_updater_node();
    const auto of_class =
        std::count_if(live_.begin(), live_.end(), [&](KeyId other) { return class_of(other) == class_of(k); });
    return static_cast<std::size_t>(of_class) >= std::min<std::size_t>(ledger_.budget(), 2) &&
           has_room_for_updater_node();
  }

  void obtain(const Run& run) {
    const KeyId k = run.key;
    Key& key = keys_[k];
    if (!std::exchange(key.captured, true)) {
      ledger_.capture(k, /*reads=*/true);
      key.stream = run.stream;
      ++members_[class_of(k)];
    }
    find_family(k, run.stream);
    const KeyId lender = lender_for(k);
    const bool table = wants_table(k, lender);
    const bool same_class = lender != kNobody && class_of(lender) == class_of(k);
    const bool can_lend =
        lender != kNobody && keys_[lender].kind != Kind::kSlots && (keys_[lender].kind != Kind::kTable || same_class);
    if (can_lend && !table) {
      const std::size_t nodes = ledger_.graph(k).nodes;
      const Cost rent = keys_[lender].kind == Kind::kTable ? costs::switch_row(nodes) : update(lender, k);
      const bool keeps = key.paid + rent > costs::buy(nodes) && (fits() || keys_[victim()].used < key.rents_from);
      const Graph& graph = ledger_.graph(k);
      const bool grows = keys_[lender].kind == Kind::kTable && !ledger_.has_set(keys_[lender].executable, k);
      if (!keeps && grows &&
          ledger_.bytes(keys_[lender].executable) + price::set_bytes(graph) > 2 * price::bytes(graph)) {
        ledger_.destroy(keys_[lender].executable);
        set_live(lender, false);
        return buy(k, false);
      }
      if (!keeps) return take(lender, k, rent);
    }
    while (!fits()) {
      const KeyId loser = victim();
      const bool is_sibling = ledger_.graph(loser).signature == ledger_.graph(k).signature;
      if (is_sibling && !table && keys_[loser].kind == Kind::kPlain) {
        take(loser, k, 0);
        key.paid = 0;
        return;
      }
      if (is_sibling && keys_[loser].kind == Kind::kTable && class_of(loser) == class_of(k)) return take(loser, k, 0);
      ledger_.destroy(keys_[loser].executable);
      set_live(loser, false);
      evicted_ = true;
    }
    buy(k, table);
  }

  void take(KeyId lender, KeyId k, Cost rent) {
    const bool is_spare = spare_.count(family_of(k)) == 0 || spare_[family_of(k)] == lender;
    keys_[k].executable = keys_[lender].executable;
    keys_[k].kind = keys_[lender].kind;
    if (keys_[k].paid == 0) keys_[k].rents_from = keys_[k].used;
    keys_[k].paid += rent;
    set_live(lender, false);
    set_live(k, true);
    ledger_.bring_over(keys_[k].executable, k);
    if (is_spare) spare_[family_of(k)] = k;
  }

  void buy(KeyId k, bool table) {
    Key& key = keys_[k];
    const bool slots = prefers_ == Prefers::kTotalTime && ledger_.budget() >= 8 && has_room_for_updater_node();
    key.kind = table ? Kind::kTable : slots ? price::own_kind(ledger_.graph(k)) : Kind::kPlain;
    key.executable = ledger_.instantiate(k, key.kind);
    key.paid = 0;
    set_live(k, true);
    if (table || spare_.count(family_of(k)) == 0) spare_[family_of(k)] = k;
    if (table) rents_.erase(class_of(k));
  }

  Ledger& ledger_;
  const Prefers prefers_;
  std::vector<Key> keys_;
  std::vector<KeyId> live_;
  std::map<Family, KeyId> spare_;
  std::map<Class, Cost> rents_;
  std::map<Class, std::size_t> members_;
  std::uint64_t uses_ = 0;
  const std::uint64_t period_;
  bool evicted_ = false;
};

template <Prefers prefers>
std::unique_ptr<SimPolicy> make(Ledger& ledger) {
  return std::make_unique<Today>(ledger, prefers);
}

}  // namespace

const std::vector<NamedPolicy>& today_policies() {
  static const std::vector<NamedPolicy> policies = {
      {"today", make<Prefers::kTotalTime>},
      {"today, device time", make<Prefers::kDeviceTime>},
  };
  return policies;
}

}  // namespace graphcache::sim
