// Gets an executable for an entry that has a template, by carrying out the policy's plan.
#include <absl/cleanup/cleanup.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "graph/describe.h"
#include "run/run.h"

namespace graphcache {

// The entry, which has a template and no executable, joins the family of the stream, if it can have siblings.
absl::Status Run::find_family() {
  const cudaError_t error = where_.find_id();
  if (is_fatal(error)) return cuda_failure("cudaStreamGetId", error);
  if (error != cudaSuccess) return absl::OkStatus();
  const Store::ToRead to_read = core_.store.join_family(entry_.get(), where_.id);
  if (const Held other(to_read.other, {core_}); other != nullptr) read_graph(*other);
  if (to_read.itself) read_graph(*entry_);
  return absl::OkStatus();
}

void Run::read_graph(Entry& entry) {
  Content& content = *recorded(entry).content;
  std::optional<Signature> signature = recorded(entry).signature;
  if (!signature) signature = describe(recorded(entry).readable(), &content);
  if (content.is_alone) signature.reset();
  GraphFacts facts = facts_of(content);
  if (signature && content.is_settled) {
    facts.table_class = ParameterTable::class_of(content);
    facts.table_bytes = UpdatedExecutable::estimated_device_bytes(content);
    facts.set_bytes = ParameterTable::estimated_set_bytes(content);
  }
  core_.store.described(&entry, facts, signature);
}

// Makes the parameter set that the lender's table would get, if it has a table without one. Returns false if that table
// cannot hold it.
bool Run::make_set(const Held& lender, ParameterTable::Set* set) {
  UpdatedExecutable* const executable = executable_of(*lender)->updated();
  const ParameterTable* const table = executable == nullptr ? nullptr : executable->table();
  if (table == nullptr || table->has(*own().content)) return true;
  if (!table->can_hold(*own().content)) {
    core_.store.refuse(entry_.get(), &Policy::refuse_sets);
    return false;
  }
  *set = table->make_set(*own().content);
  return true;
}

// See Store::decide(). What the plan evicts is gone, and the lender that it borrows from is held.
std::optional<Plan> Run::decide(Held& lender, const ParameterTable::Set& set, bool may_evict) {
  Store::Decision made = core_.store.decide(entry_.get(), lender.get(), set.size(), may_evict);
  for (Entry* const victim : made.victims) evict(victim, /*unlocks=*/victim != lender.get());
  if (made.lender != lender.get()) lender.reset(made.lender);
  if (made.plan && made.plan->action == Plan::Action::kBorrow) {
    core_.audience->mark(Core::event_of(EventKind::kLend, *lender, Loss::kLent));
  }
  return std::move(made.plan);
}

// The store has evicted this entry.
void Run::evict(Entry* victim, bool unlocks) {
  core_.audience->mark(Core::event_of(EventKind::kEvict, *victim, Loss::kEvicted));
  core_.bury_executable(*victim, Loss::kEvicted);
  if (unlocks) core_.unlock(victim);
}

// Brings the lender's executable over to the entry. Returns nothing if that is impossible, after telling the policy
// why.
std::optional<CallResult> Run::take_over(Held& lender, const Plan& plan, const ParameterTable::Set& set) {
  LastErrorGuard last_error;
  Executable& executable = *executable_of(*lender);
  UpdatedExecutable* const with_table = executable.updated();
  Loss loss = Loss::kFailed;
  // The state of the executable is unknown, or it cannot be used any more.
  absl::Cleanup drop = [&] {
    core_.give_up(*lender, loss);
    core_.give_up(*entry_, loss);
  };
  const auto undo = [&] {
    std::move(drop).Cancel();
    core_.store.undone(entry_.get(), lender.get(), plan);
  };
  // No other set can be written to a table whose first launch failed, so it is made anew.
  if (with_table != nullptr && !with_table->is_in_place()) return std::nullopt;
  loss = Loss::kStale;
  if (with_table != nullptr && !with_table->has_its_memory(call_.values)) return std::nullopt;
  loss = Loss::kFailed;
  Operation update(core_, EventKind::kUpdate, *entry_, &Stats::update_time);
  lender->exec = nullptr;
  BroughtOver brought;
  if (with_table != nullptr) {
    if (!with_table->table()->has(*own().content)) brought.result = with_table->add_set(*own().content, set);
    if (brought.result.error != cudaSuccess && !is_fatal(brought.result.error)) {
      core_.store.refuse(entry_.get(), &Policy::refuse_device_updates);
      update.done(brought.result);
      return std::nullopt;
    }
    if (brought.result.error == cudaSuccess) brought = with_table->switch_set(own().graph, own().content, call_);
  } else {
    // The lender's graph stays the executable's base, and the lender gets a clone, because two threads may not use one
    // graph.
    Template& from = recorded(*lender).graph;
    if (from.empty()) brought.result = executable.base().clone(&from);
    brought.is_whole = brought.result.error != cudaSuccess;
    if (!brought.is_whole) brought = executable.bring_over(own().graph, own().content, call_);
  }
  update.done(brought.result);
  entry_->patched_nodes.add(brought.patched_nodes);
  if (brought.updated) core_.store.count(&Stats::updates);
  if (brought.result.error == cudaSuccess) {
    std::move(drop).Cancel();
    own().executable = take_executable(*lender);
    own().grave = std::move(recorded(*lender).grave);
    if (with_table != nullptr) core_.store.count(&Stats::set_switches);
    return CallResult();
  }
  brought.is_whole ? undo() : std::move(drop).Invoke();
  if (brought.refusal.empty() && brought.is_whole) return brought.result;
  if (with_table != nullptr || brought.updated || is_fatal(brought.result.error)) return brought.result;
  not_updated(brought);
  return std::nullopt;
}

// The runtime has not updated an executable to the entry's graph. The entry, which has none, gets no sibling's any
// more.
void Run::not_updated(const BroughtOver& brought) {
  if (brought.refusal.empty()) core_.store.lose(entry_.get(), Loss::kFailed, false, false, brought.result.status());
  core_.store.refuse(entry_.get(), &Policy::refuse_siblings, brought.refusal);
  if (brought.refusal.empty()) return;
  core_.store.count(&Stats::refused_updates);
  core_.log(key_, brought.refusal, "the runtime refused an update between two graphs that look alike: ");
}

// Instantiates the executable that the policy has promised to the entry. If memory runs out, evicts one more
// executable, returns the memory that the cache and the device keep for others, and tries once more.
CallResult Run::buy(Plan& plan, bool may_evict) {
  Operation instantiation(core_, EventKind::kInstantiate, *entry_, &Stats::instantiate_time);
  LastErrorGuard last_error;
  absl::Cleanup threw = [this] { core_.give_up(*entry_, Loss::kFailed); };
  CallResult result = instantiate(plan);
  if (result.error == cudaErrorMemoryAllocation || result.error == cudaErrorNotSupported) {
    if (result.error == cudaErrorMemoryAllocation && may_evict) {
      if (Entry* const victim = core_.store.evict_one(entry_.get())) evict(victim);
    }
    // A graph that allocates memory can have only one executable. Its last one may still wait for destruction, or be
    // in the hands of another thread that is about to destroy it.
    constexpr std::chrono::microseconds kPause(100), kPatience(100'000);
    const bool waits = result.error == cudaErrorNotSupported;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    result = core_.collect_all();
    while (result.error == cudaSuccess && waits && has_relatives(own().graph.graph) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kPause);
      result = core_.collect_all();
    }
    if (result.error == cudaSuccess) {
      core_.trim();
      cudaDeviceGraphMemTrim(core_.options.device);
      result = instantiate(plan);
    }
  }
  std::move(threw).Cancel();
  instantiation.done(result);
  if (result.error == cudaSuccess) core_.store.count(&Stats::instantiations);
  return result;
}

// Instantiates a plain executable, and plans one, if the device cannot update this one.
CallResult Run::instantiate(Plan& plan) {
  RelaxedCaptureMode relaxed;
  Recorded& of = own();
  Device& device = *core_.device;
  const unsigned long long flags = core_.options.instantiate_flags;
  const bool with_table = plan.action == Plan::Action::kTable;
  if (of.grave.empty()) of.grave.emplace_back();  // Now, because this may throw.
  if (with_table || plan.writes_slots) {
    const CallResult result =
        UpdatedExecutable::instantiate(of.graph, of.content, with_table, flags, device, &of.executable);
    if (result.error == cudaSuccess || is_fatal(result.error)) return result;
    plan.action = Plan::Action::kOwn;
    plan.writes_slots = false;
    core_.store.refuse(entry_.get(), &Policy::refuse_device_updates);
  }
  return Executable::instantiate(of.graph, of.content, flags, *device.memory, &of.executable);
}

}  // namespace graphcache
