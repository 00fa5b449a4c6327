#include "checks.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "after_call.h"
#include "exec/updated_executable.h"
#include "graphcache/hostrt.h"
#include "index_peer.h"

namespace graphcache {

// Null if the program is linked with another runtime.
namespace hostrt {
[[gnu::weak]] Ledger ledger();
}

namespace {

constexpr State kStates[] = {State::kCold, State::kRecorded, State::kLive};

const char* name_of(State state) {
  constexpr const char* kNames[] = {"cold", "recorded", "live"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string of(const Entry& entry, const char* what) {
  return absl::StrCat("entry ", entry.key.to_string(), ", ", name_of(entry.state), ": ", what);
}

// With those inside nodes.
std::size_t nodes_of(const Template& graph) {
  std::size_t count = graph.nodes.size();
  for (const InnerNodes& inner : graph.inner) count += inner.nodes.size();
  return count;
}

bool same_types(const Content& a, const Content& b) {
  return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                    [](const NodeContent& x, const NodeContent& y) { return x.type == y.type; });
}

}  // namespace

// Checks that the table, the orders of use and the counts agree.
std::string StructureChecker::find_fault(const Index& index) {
  for (const Entry* entry = index.erased_.newest; entry != nullptr; entry = entry->older) {
    if (!entry->erased) return of(*entry, "it is not erased, and waits for a sweep");
  }

  std::size_t total = 0;
  for (const Index::Order& order : index.orders_) total += order.size;
  std::size_t in_table = 0;
  const EntryTable& table = index.table_;
  for (KeyId id = 0; id < index.ids(); ++id) {
    const Entry& one = *index.of(id);
    std::size_t found = 0, length = 0;
    for (const Entry* entry = table.chain(one.key.hash()); entry != nullptr; entry = EntryTable::next(entry)) {
      if (++length > total) return "the table holds more entries than the orders of use";
      found += entry == &one ? 1 : 0;
    }
    if (one.erased && found > 0) return of(one, "it is erased, and in the table");
    if (!one.erased && found != 1) return of(one, "it is not in the table");
    in_table += found;
  }
  if (in_table != total) return "the table holds more or fewer entries than the orders of use";

  for (const State state : kStates) {
    const Index::Order& order = index.orders_[static_cast<std::size_t>(state)];
    const Entry* newer = nullptr;
    std::size_t size = 0, key_bytes = 0;
    for (const Entry* entry = order.newest; entry != nullptr; newer = entry, entry = entry->older) {
      if (++size > order.size) return absl::StrCat("the order of ", name_of(state), " entries is longer than it says");
      if (entry->state != state) return of(*entry, "it is in the order of another state");
      if (entry->newer != newer) return of(*entry, "the order of use is linked wrongly");
      if (entry->tag != Entry::tag_of(entry->key, entry->site)) return of(*entry, "its tag is another's");
      if (index.of(entry->id) != entry) return of(*entry, "its id is another's");
      if (state == State::kCold && entry->signature != nullptr) return of(*entry, "it has a signature");
      key_bytes += entry->key.size();
    }
    if (order.oldest != newer || order.size != size) {
      return absl::StrCat("the order of ", name_of(state), " entries ends elsewhere than it says");
    }
    if (order.key_bytes != key_bytes) {
      return absl::StrCat("the order of ", name_of(state), " entries sums up the bytes of keys wrongly");
    }
  }

  return "";
}

// Checks that the policy's knowledge of the entries is right.
std::string StructureChecker::fault_of_policy(const Policy& policy, const Signatures& signatures, const Index& index) {
  if (std::string fault = find_fault(policy); !fault.empty()) return fault;
  std::string fault;
  AsideMap<const Signatures::value_type*, std::size_t> users;
  IndexPeer::for_each(index, [&](const Entry* entry) {
    if (entry->signature != nullptr) ++users[entry->signature];
    if (!fault.empty()) return;
    if (policy.is_live(entry->id) != (entry->state == State::kLive)) {
      fault = of(*entry, "the policy knows another state");
    } else if (policy.family(entry->id) != 0 && entry->state == State::kCold) {
      fault = of(*entry, "it has a family and no template");
    } else if (policy.family(entry->id) != 0 && entry->signature == nullptr) {
      fault = of(*entry, "it has a family and no signature");
    } else if (entry->erased && !policy.is_pinned(entry->id)) {
      fault = of(*entry, "it is erased, and may lose its executable");
    }
  });
  if (!fault.empty()) return fault;
  if (users.size() != signatures.size()) return "the signatures are counted wrongly";
  for (const auto& [signature, count] : users) {
    if (signature->second != count) return "a signature counts its entries wrongly";
  }
  return "";
}

// Checks that the entry has what its state says.
std::string StructureChecker::fault_of(const Policy& policy, const Entry& entry) {
  const bool live = entry.state == State::kLive;
  Executable* const executable = executable_of(entry);
  if ((executable != nullptr) != live) {
    return of(entry, live ? "it has no executable" : "it has an executable");
  }
  if (entry.state == State::kCold) {
    return entry.graphs == nullptr ? "" : of(entry, "it has a template");
  }
  if (entry.graphs == nullptr) return of(entry, "it has no content");
  const Content& content = *recorded(entry).content;
  const Template& graph = recorded(entry).graph;
  if (graph.empty() && !live) return of(entry, "it has no template");
  if (!graph.empty() && nodes_of(graph) != content.node_count) {
    return of(entry, "its template is that of another content");
  }
  if (entry.info.nodes != content.node_count || entry.info.slot_nodes != content.slots.nodes.size()) {
    return of(entry, "it does not report its content");
  }
  if (entry.signature != nullptr && content.nodes.size() != content.node_count) {
    return of(entry, "it has a signature, and its nodes have not been read");
  }
  if (!live) return "";
  UpdatedExecutable* const updated = executable->updated();
  if (policy.has_table(entry.id) != (updated != nullptr && updated->table() != nullptr)) {
    return of(entry, "the policy does not know whether it has a table");
  }
  if (policy.is_device_updated(entry.id) != (updated != nullptr)) {
    return of(entry, "the policy does not know whether it has an updater node");
  }
  if (executable->content_ != recorded(entry).content) return of(entry, "its executable holds another's content");
  const std::string fault = fault_of(*executable);
  return fault.empty() ? "" : of(entry, fault.c_str());
}

// Checks the shadow of what the executable holds: its content's slots with the fields made from its values.
std::string StructureChecker::fault_of(const Executable& executable) {
  if (executable.exec_.get() == nullptr) return "its executable has no handle";
  if (executable.base_.empty()) return "its executable has no base";
  const Content& content = *executable.content_;
  const Slots& slots = executable.slots_;
  if (nodes_of(executable.base_) != content.node_count) return "the base of its executable is of another topology";
  if (slots.nodes.size() != content.slots.nodes.size() || slots.fields.size() != content.slots.fields.size() ||
      executable.values_.size() != content.values.size()) {
    return "the shadow of its executable is of another content";
  }
  if (const_cast<Executable&>(executable).updated() != nullptr)
    return "";  // The updater node has the values that it writes.
  if (!executable.is_of_values_) return "";
  for (const Binding& binding : slots.bindings) {
    unsigned char room[detail::kMaxConvertedBytes];
    const unsigned char* const value = binding.bytes(executable.values_.data(), room);
    if (std::memcmp(slots.fields.data() + binding.target, value, binding.size) != 0) {
      return "its executable holds other values than it says";
    }
  }
  return "";
}

// Checks that siblings have nodes of the same types in the same order, which equal signatures imply.
std::string StructureChecker::fault_of_sharing(const Index& index, const Locked& locked) {
  AsideMap<const Signatures::value_type*, const Content*> firsts;
  std::string fault;
  IndexPeer::for_each(index, [&](const Entry* entry) {
    if (entry->signature == nullptr || !locked.contains(entry)) return;
    const Content* const first = firsts.try_emplace(entry->signature, recorded(*entry).content.get()).first->second;
    if (!same_types(*first, *recorded(*entry).content))
      fault = of(*entry, "its nodes are of other types than its siblings'");
  });
  return fault;
}

// Checks that each graph and executable has one owner and exists. Other threads may destroy what waits for destruction,
// but not what an idle entry has.
std::string StructureChecker::fault_of_handles(const Index& index, const Locked& locked) {
  AsideMap<cudaGraph_t, const Entry*> graphs;
  AsideMap<cudaGraphExec_t, const Entry*> executables;
  for (const State state : {State::kRecorded, State::kLive}) {
    for (const Entry* entry = index.orders_[static_cast<std::size_t>(state)].newest; entry != nullptr;
         entry = entry->older) {
      if (!locked.contains(entry)) continue;
      const Recorded& has = recorded(*entry);
      bool is_one = has.graph.empty() || graphs.try_emplace(has.graph.graph.get(), entry).second;
      if (has.executable != nullptr) {
        is_one &= graphs.try_emplace(has.executable->base_.graph.get(), entry).second;
        if (!executables.try_emplace(has.executable->exec_.get(), entry).second) {
          return of(*entry, "its executable has two owners");
        }
      }
      if (!is_one) return "a graph has two owners";
    }
  }
  if (hostrt::ledger == nullptr) return "";
  const hostrt::Ledger alive = hostrt::ledger();
  if (alive.graphs < graphs.size()) return absl::StrCat("of ", graphs.size(), " graphs ", alive.graphs, " are alive");
  if (alive.executables < executables.size()) {
    return absl::StrCat("of ", executables.size(), " executables ", alive.executables, " are alive");
  }
  return "";
}

// Checks what stats.h says of the counters, as far as it holds at any time. Outcomes are counted without the cache's
// lock, but after the counts that they depend on.
std::string StructureChecker::fault_of_counters(const Store& store, Index& index, const Locked& locked) {
  std::uint64_t live = 0, eager = 0;
  std::string fault;
  const auto add = [&](Entry* entry) {
    if (!locked.contains(entry)) return;
    for (int i = 0; i < kOutcomeCount; ++i) {
      if (entry->counted.outcomes[i] > entry->counts()[i]) fault = of(*entry, "the cache has counted more runs");
      if (entry->state != State::kLive && !entry->erased && i != static_cast<int>(Outcome::kEager) &&
          entry->counted.outcomes[i] != entry->counts()[i]) {
        fault = of(*entry, "the cache has not counted its runs");
      }
    }
    live += entry->state == State::kLive;
  };
  IndexPeer::for_each(index, add);
  if (!fault.empty()) return fault;
  Stats runs;
  runs.outcomes = index.runs().outcomes;
  for (const auto& reason : store.eager_reasons_) eager += reason;
  MutexLock lock(store.counts_mutex_);
  const Stats& totals = store.counted_;
  const auto count = [&](Outcome outcome) { return runs.outcome(outcome); };
  if (count(Outcome::kEager) > eager) return "the entries have counted more direct runs than the cache";
  if (count(Outcome::kUpdated) + count(Outcome::kInstantiated) > totals.captures) {
    return "there are more misses than captures";
  }
  if (count(Outcome::kInstantiated) + count(Outcome::kRestored) > totals.instantiations) {
    return "more runs brought an executable than were instantiated";
  }
  if (live > totals.instantiations) return "more executables live than were instantiated";
  if (index.templates() + totals.forgotten > totals.captures) {
    return "more templates exist or were dropped than captures were made";
  }
  return "";
}

std::string StructureChecker::find_fault(const Cache& cache) { return find_fault(*cache.core_); }

std::string StructureChecker::find_fault(Core& core) {
  MutexLock lock(core.store.mutex_);
  if (std::string fault = find_fault(core.store.index_); !fault.empty()) return fault;
  // The entries that are not in use. The locks keep other threads from using them.
  Locked locked;
  IndexPeer::for_each(core.store.index_, [&](Entry* entry) {
    if (entry->lock.try_lock()) locked[entry] = true;
  });
  std::string fault = fault_of(core, locked);
  IndexPeer::for_each(core.store.index_, [&](Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (locked.contains(entry) && entry->lock.unlock()) core.store.unlocked_.notify_all();
  });
  return fault;
}

std::string StructureChecker::fault_of(Core& core, const Locked& locked) {
  if (std::string fault = fault_of_policy(core.store.policy_, core.store.signatures_, core.store.index_);
      !fault.empty())
    return fault;
  // The number of templates is not checked: it exceeds Options::max_templates while runs that will tidy up are under
  // way, and if such runs found the surplus in use.
  if (core.store.policy_.executables() > static_cast<std::size_t>(std::max(core.options.max_executables, 0))) {
    return "there are more executables than the options allow";
  }
  if (core.store.policy_.bytes() > core.options.max_device_bytes) {
    return "executables take more device memory than the options allow";
  }
  for (const Index::Order& order : core.store.index_.orders_) {
    for (Entry* entry = order.newest; entry != nullptr; entry = entry->older) {
      if (!locked.contains(entry)) continue;
      if (std::string fault = fault_of(core.store.policy_, *entry); !fault.empty()) return fault;
    }
  }
  // Not after a fatal error, which drops everything as it is.
  for (Entry* entry = core.store.index_.erased_.newest; entry != nullptr && !core.lost_; entry = entry->older) {
    if (!locked.contains(entry)) continue;
    if (std::string fault = fault_of(core.store.policy_, *entry); !fault.empty()) return fault;
  }
  if (std::string fault = fault_of_sharing(core.store.index_, locked); !fault.empty()) return fault;
  // They do not exist any more if their context has ended.
  if (std::string fault = fault_of_handles(core.store.index_, locked); !fault.empty() && core.is_here()) return fault;
  for (const auto& [entry, is_locked] : locked) {
    const Executable* const executable = executable_of(*entry);
    const bool is_right = entry->exec == nullptr || (executable != nullptr && entry->exec == executable->exec() &&
                                                     entry->ready_on == executable->stream().handle);
    if (!is_right) return of(*entry, "hits launch another executable, or on another stream than its last launch");
  }
  return fault_of_counters(core.store, core.store.index_, locked);
}

Index& StructureChecker::index(Cache& cache) { return cache.core_->store.index_; }
Policy& StructureChecker::policy(Cache& cache) { return cache.core_->store.policy_; }
Stats& StructureChecker::totals(Cache& cache) { return cache.core_->store.counted_; }

void StructureChecker::check(Core& core) {
  const std::string fault = find_fault(core);
  if (fault.empty()) return;
  std::fprintf(stderr, "graphcache: the cache is not in order: %s\n", fault.c_str());
  std::abort();
}

bool StructureChecker::has_many_entries(Core& core) {
  MutexLock lock(core.store.mutex_);
  return core.store.index_.ids() > 1000;
}

void check_after_call(void* core) {
  constexpr unsigned kRarely = 16;  // A check takes time for each entry.
  static std::atomic<unsigned> calls{0};
  Core& called = *static_cast<Core*>(core);
  if (!StructureChecker::has_many_entries(called) || ++calls % kRarely == 0) StructureChecker::check(called);
}

}  // namespace graphcache
