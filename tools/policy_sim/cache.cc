#include "cache.h"

#include <utility>

#include "policy/policy.h"

namespace graphcache::sim {
namespace {

// Before it is read, a graph is like any other with as many nodes.
GraphFacts facts_of(const Graph& graph) {
  return {.signature = graph.signature + 1,
          .table_class = graph.table_class,
          .shape = graph.nodes,
          .bytes = price::bytes(graph),
          .table_bytes = price::updater_bytes(graph, Kind::kTable),
          .set_bytes = price::set_bytes(graph),
          .slot_kernels = graph.slot_nodes};
}

class Cache : public SimPolicy {
 public:
  Cache(Ledger& ledger, Share share)
      : ledger_(ledger),
        policy_(
            {.share = share, .max_executables = ledger.budget(), .max_device_bytes = ledger.trace().max_device_bytes}),
        executables_(ledger.trace().graphs.size(), kNone),
        captured_(ledger.trace().graphs.size()) {}

  void run(const Run& run) override {
    policy_.used(run.key, {++runs_, 0});
    if (executables_[run.key] == kNone) miss(run);
    if (executables_[run.key] == kNone) return ledger_.run_directly();
    ledger_.launch(executables_[run.key]);
  }

 private:
  static constexpr ExecutableId kNone = kUnlimited;

  // The key gets no executable if other threads use all of them.
  void miss(const Run& run) {
    const auto idle = [&](KeyId key) { return !ledger_.is_in_use(executables_[key]); };
    if (!captured_[run.key]) {
      if (!policy_.has_room(run.key, idle)) return;
      GraphFacts facts = facts_of(ledger_.graph(run.key));
      facts.signature = 0;
      ledger_.capture(run.key);
      policy_.captured(run.key, facts);
      captured_[run.key] = true;
    }
    policy_.moved(run.key, run.stream);
    const auto read = [&](KeyId key) {
      ledger_.read(key);
      policy_.described(key, facts_of(ledger_.graph(key)));
    };
    const Policy::ToRead to_read = policy_.to_read(run.key);
    if (to_read.itself) read(run.key);
    if (to_read.other != kNoKey && idle(to_read.other)) read(to_read.other);
    const Plan plan = policy_.plan(run.key, offer(run.key, policy_.candidate(run.key, idle)), idle);
    carry_out(run.key, plan);
    policy_.done(run.key, plan);
  }

  Offer offer(KeyId key, KeyId lender) const {
    if (lender == kNoKey) return {};
    const bool has_set = ledger_.has_set(executables_[lender], key);
    return {lender, has_set ? 0 : price::set_bytes(ledger_.graph(key))};
  }

  void carry_out(KeyId key, const Plan& plan) {
    for (const KeyId loser : plan.evict) ledger_.destroy(std::exchange(executables_[loser], kNone));
    switch (plan.action) {
      case Plan::Action::kDirect:
        break;
      case Plan::Action::kOwn:
        executables_[key] = ledger_.instantiate(key, plan.writes_slots ? Kind::kSlots : Kind::kPlain);
        break;
      case Plan::Action::kTable:
        executables_[key] = ledger_.instantiate(key, Kind::kTable);
        break;
      case Plan::Action::kBorrow:
        executables_[key] = std::exchange(executables_[plan.lender], kNone);
        ledger_.bring_over(executables_[key], key);
        break;
    }
  }

  Ledger& ledger_;
  Policy policy_;
  std::vector<ExecutableId> executables_;  // by key
  std::vector<bool> captured_;
  std::uint64_t runs_ = 0;
};

template <Share share>
std::unique_ptr<SimPolicy> make(Ledger& ledger) {
  return std::make_unique<Cache>(ledger, share);
}

}  // namespace

const std::vector<NamedPolicy>& cache_policies() {
  static const std::vector<NamedPolicy> policies = {
      {"cache", make<Share::kWhenFull>},
      {"cache, never", make<Share::kNever>},
      {"cache, always", make<Share::kAlways>},
  };
  return policies;
}

}  // namespace graphcache::sim
