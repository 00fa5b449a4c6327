// The account of a policy: prices, executables, device memory, the most expensive run. Checks each action. A policy
// ends the program if it exceeds its limits, launches an executable of another key's graph, updates what cannot be
// updated, or destroys or updates what another thread uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "price.h"
#include "trace.h"

namespace graphcache::sim {

using ExecutableId = std::size_t;

struct Totals {
  Price price;
  std::size_t captures = 0, instantiations = 0, switches = 0, direct_runs = 0;
  std::size_t executables = 0, peak_executables = 0;
  std::size_t bytes = 0, peak_bytes = 0;  // of executables, tables and parameter sets
  // Beside these: updater nodes for slots, and what the driver takes once a process.
  std::size_t slot_bytes = 0, peak_slot_bytes = 0;
  bool takes_driver_bytes = false;
  Ns startup = 0;              // host time of the first runs of keys
  Ns later_host = 0;           // host time of all other runs
  std::size_t later_runs = 0;  // number of all other runs
  Ns worst_later = 0;          // the most expensive of them, without the kernels' own time
};

class Ledger {
 public:
  Ledger(const Trace& trace, std::size_t budget);

  const Trace& trace() const { return trace_; }
  const Graph& graph(KeyId key) const { return trace_.graphs[key]; }
  std::size_t budget() const { return budget_; }
  const Totals& totals() const { return totals_; }

  bool has_set(ExecutableId id, KeyId key) const { return executables_[id].sets.count(key) != 0; }

  // Whether a plain executable of the key is within the limits.
  bool has_room(KeyId key) const {
    return totals_.executables < budget_ && totals_.bytes + price::bytes(graph(key)) <= trace_.max_device_bytes;
  }
  // Whether the current run of another thread uses it.
  bool is_in_use(ExecutableId id) const;

  void begin(const Run& run);
  void end();

  void capture(KeyId key);
  // Reads the key's graph, so that it can share.
  void read(KeyId key) { host(graph(key).nodes * price::kRead); }
  ExecutableId instantiate(KeyId key, Kind kind);
  void destroy(ExecutableId id);
  // Brings an executable over to a sibling. If it has a table, it does so by a parameter set, which the key gets if it
  // has none there. Otherwise by an update.
  void bring_over(ExecutableId id, KeyId key);
  void launch(ExecutableId id);
  // Launches the run's kernels without a graph.
  void run_directly();

 private:
  struct Executable {
    Kind kind = Kind::kPlain;
    KeyId base = 0, holds = 0;
    bool live = false, launched = false;
    bool has_values = false;   // whether it has the values of the run
    std::uint32_t stream = 0;  // stream of the last launch
    std::size_t launch = 0;    // number of the last launch
    std::size_t bytes = 0, slot_bytes = 0;
    std::unordered_set<KeyId> sets;
  };

  void host(Ns ns) { totals_.price.host += ns; }
  void update(Executable* executable, KeyId key);
  void switch_set(Executable* executable, KeyId key);
  void take(Executable* executable, std::size_t bytes);

  const Trace& trace_;
  const std::size_t budget_;
  const std::size_t streams_;
  std::vector<Executable> executables_;
  std::map<std::uint32_t, ExecutableId> in_use_;  // by thread
  std::vector<bool> captured_, seen_;
  Totals totals_;
  Run run_;
  bool just_captured_ = false;  // in this run, with its values
  Price before_;
  std::size_t launches_ = 0;
  ExecutableId last_launched_ = kUnlimited;
};

}  // namespace graphcache::sim
