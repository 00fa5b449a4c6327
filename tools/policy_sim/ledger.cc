#include "ledger.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace graphcache::sim {
namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "policy_sim: a policy %s\n", what);
  std::abort();
}

}  // namespace

Ledger::Ledger(const Trace& trace, std::size_t budget)
    : trace_(trace),
      budget_(budget),
      streams_(trace.streams()),
      captured_(trace.graphs.size()),
      seen_(trace.graphs.size()) {}

bool Ledger::is_in_use(ExecutableId id) const {
  return std::any_of(in_use_.begin(), in_use_.end(), [id](const auto& of_thread) { return of_thread.second == id; });
}

void Ledger::begin(const Run& run) {
  run_ = run;
  in_use_.erase(run.thread);
  just_captured_ = false;
  before_ = totals_.price;
}

void Ledger::end() {
  const Ns host = totals_.price.host - before_.host;
  if (!seen_[run_.key]) {
    totals_.startup += host;
  } else {
    totals_.later_host += host;
    ++totals_.later_runs;
    totals_.worst_later = std::max(totals_.worst_later, totals_.price.overhead() - before_.overhead());
  }
  seen_[run_.key] = true;
}

void Ledger::capture(KeyId key) {
  ++totals_.captures;
  host(graph(key).nodes * (captured_[key] ? price::kCapture : price::kFirstCapture));
  captured_[key] = just_captured_ = true;
}

void Ledger::take(Executable* executable, std::size_t bytes) {
  executable->bytes += bytes;
  totals_.bytes += bytes;
  check(totals_.bytes <= trace_.max_device_bytes, "exceeds its device memory");
  totals_.peak_bytes = std::max(totals_.peak_bytes, totals_.bytes);
}

ExecutableId Ledger::instantiate(KeyId key, Kind kind) {
  const std::size_t updater = price::updater_bytes(graph(key), kind);
  const std::size_t needed = price::bytes(graph(key)) + (kind == Kind::kTable ? updater : 0);
  host(price::instantiate(graph(key), kind, totals_.bytes + needed > totals_.peak_bytes));
  check(++totals_.executables <= budget_, "exceeds its budget");
  totals_.peak_executables = std::max(totals_.peak_executables, totals_.executables);
  ++totals_.instantiations;
  totals_.takes_driver_bytes |= kind != Kind::kPlain;
  Executable& executable = executables_.emplace_back();
  executable.kind = kind;
  executable.base = executable.holds = key;
  executable.live = true;
  executable.has_values = just_captured_;
  executable.sets.insert(key);
  take(&executable, needed);
  executable.slot_bytes = kind == Kind::kSlots ? updater : 0;
  totals_.slot_bytes += executable.slot_bytes;
  totals_.peak_slot_bytes = std::max(totals_.peak_slot_bytes, totals_.slot_bytes);
  return executables_.size() - 1;
}

void Ledger::destroy(ExecutableId id) {
  Executable& executable = executables_[id];
  check(executable.live, "destroys an executable twice");
  check(!is_in_use(id), "destroys what another thread uses");
  executable.live = false;
  --totals_.executables;
  totals_.bytes -= executable.bytes;
  totals_.slot_bytes -= executable.slot_bytes;
  host(price::destroy(graph(executable.base), executable.kind, streams_));
}

void Ledger::bring_over(ExecutableId id, KeyId key) {
  Executable& executable = executables_[id];
  const Graph& from = graph(executable.holds);
  check(executable.live && executable.kind != Kind::kSlots, "lends what cannot be lent");
  check(!is_in_use(id), "lends what another thread uses");
  check(from.signature == graph(key).signature, "lends to another signature");
  executable.kind == Kind::kTable ? switch_set(&executable, key) : update(&executable, key);
  executable.holds = key;
  executable.has_values = true;
  ++totals_.switches;
}

void Ledger::update(Executable* executable, KeyId key) {
  const Graph& to = graph(key);
  const bool same_class = graph(executable->holds).table_class == to.table_class;
  host(price::update(to, same_class ? to.difference : Difference::kKernels));
  host(price::values(to, Kind::kPlain).host);
}

void Ledger::switch_set(Executable* executable, KeyId key) {
  const Graph& to = graph(key);
  check(executable->launched, "switches what was never launched");
  check(to.table_class != 0 && graph(executable->base).table_class == to.table_class, "lends to another class");
  if (executable->sets.insert(key).second) {
    host(to.differing * price::kWriteSet);
    take(executable, price::set_bytes(to));
  }
  totals_.price += price::switch_set(to);
}

void Ledger::launch(ExecutableId id) {
  Executable& executable = executables_[id];
  const Graph& of = graph(run_.key);
  check(executable.live && executable.holds == run_.key, "launches another key's graph");
  if (!executable.has_values && (run_.values_changed || !executable.launched)) {
    totals_.price += price::values(of, executable.launched ? executable.kind : Kind::kPlain);
  }
  ++launches_;
  // Each stream has one launch in flight.
  const bool waits =
      executable.launched && executable.stream != run_.stream && launches_ - executable.launch < streams_;
  totals_.price += price::launch(of, executable.kind, id != last_launched_, waits);
  executable.launched = true;
  executable.has_values = false;
  executable.stream = run_.stream;
  executable.launch = launches_;
  last_launched_ = id;
  in_use_[run_.thread] = id;
}

void Ledger::run_directly() {
  host(graph(run_.key).nodes * price::kDirectLaunch);
  totals_.price.kernels += price::kernels(graph(run_.key));
  ++totals_.direct_runs;
}

}  // namespace graphcache::sim
