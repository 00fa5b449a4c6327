#include "policies.h"

#include <list>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace graphcache::sim {
namespace {

using Group = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

// Executables by the group of keys that shares them. The least recently used one is evicted for a new one.
class Shared {
 public:
  explicit Shared(Ledger& ledger) : ledger_(ledger) {}

  // The group's executable, created for `key` if there is none. Returns true if there was one.
  std::pair<ExecutableId, bool> find(const Group& group, KeyId key, Kind kind) {
    if (const auto found = places_.find(group); found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      return {found->second->second, true};
    }
    if (order_.size() == ledger_.budget()) {
      ledger_.destroy(order_.back().second);
      places_.erase(order_.back().first);
      order_.pop_back();
    }
    order_.emplace_front(group, ledger_.instantiate(key, kind));
    places_[group] = order_.begin();
    return {order_.front().second, false};
  }
  bool has(const Group& group) const { return places_.count(group) != 0; }

 private:
  Ledger& ledger_;
  std::list<std::pair<Group, ExecutableId>> order_;
  std::map<Group, decltype(order_)::iterator> places_;
};

class Own : public SimPolicy {
 public:
  Own(Ledger& ledger, bool keeps_templates, bool patches)
      : ledger_(ledger), shared_(ledger), keeps_templates_(keeps_templates), patches_(patches) {}

  void run(const Run& run) override {
    const Group group{run.key, 0, 0};
    const bool seen = !seen_.insert(run.key).second;
    if (!seen || (!keeps_templates_ && !shared_.has(group))) ledger_.capture(run.key);
    const Kind kind = patches_ ? Kind::kPlain : price::own_kind(ledger_.graph(run.key));
    ledger_.launch(shared_.find(group, run.key, kind).first);
  }

 private:
  Ledger& ledger_;
  Shared shared_;
  const bool keeps_templates_, patches_;
  std::set<KeyId> seen_;
};

class OneTable : public SimPolicy {
 public:
  explicit OneTable(Ledger& ledger) : ledger_(ledger), shared_(ledger) {}

  void run(const Run& run) override {
    const Graph& graph = ledger_.graph(run.key);
    if (seen_.insert(run.key).second) {
      ledger_.capture(run.key);
      ledger_.read(run.key);
    }
    const bool shares = graph.table_class != 0;
    const Group group = shares ? Group{graph.signature, graph.table_class, run.stream} : Group{run.key, 0, ~0u};
    const auto [executable, found] = shared_.find(group, run.key, shares ? Kind::kTable : price::own_kind(graph));
    if (shares && found && holds_[executable] != run.key) ledger_.bring_over(executable, run.key);
    holds_[executable] = run.key;
    ledger_.launch(executable);
  }

 private:
  Ledger& ledger_;
  Shared shared_;
  std::set<KeyId> seen_;
  std::map<ExecutableId, KeyId> holds_;
};

class OneUpdated : public SimPolicy {
 public:
  explicit OneUpdated(Ledger& ledger) : ledger_(ledger), shared_(ledger) {}

  void run(const Run& run) override {
    const Graph& graph = ledger_.graph(run.key);
    if (seen_.insert(run.key).second) {
      ledger_.capture(run.key);
      ledger_.read(run.key);
    }
    const auto [executable, found] = shared_.find({graph.signature, 0, run.stream}, run.key, Kind::kPlain);
    if (found && holds_[executable] != run.key) ledger_.bring_over(executable, run.key);
    holds_[executable] = run.key;
    ledger_.launch(executable);
  }

 private:
  Ledger& ledger_;
  Shared shared_;
  std::set<KeyId> seen_;
  std::map<ExecutableId, KeyId> holds_;
};

template <class Policy, bool... options>
std::unique_ptr<SimPolicy> make(Ledger& ledger) {
  return std::make_unique<Policy>(ledger, options...);
}

}  // namespace

const std::vector<NamedPolicy>& simple_policies() {
  static const std::vector<NamedPolicy> policies = {
      {"own", make<Own, false, false>},
      {"own, templates", make<Own, true, false>},
      {"own, host patches", make<Own, true, true>},
      {"one table", make<OneTable>},
      {"one updated", make<OneUpdated>},
  };
  return policies;
}

}  // namespace graphcache::sim
