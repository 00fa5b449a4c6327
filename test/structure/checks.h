// Checks the structures of a cache, for tests. Makes no CUDA call and allocates nothing unless it finds a fault, so
// programs that count or fail either are not affected.
//
// With the build option structure_checks, every public operation ends with a check (after_call.h). Without the option,
// the library contains nothing of this.
#pragma once

#include <string>

#include "aside.h"
#include "graphcache/cache.h"
#include "run/core.h"
#include "store/index.h"

namespace graphcache {

class StructureChecker {
 public:
  // Describes the first fault; empty if there is none. Other threads may be running, so data that an entry's lock
  // guards is checked only if the lock is free.
  static std::string find_fault(const Cache& cache);
  static std::string find_fault(const Index& index);
  static std::string find_fault(const Policy& policy);
  // Prints a fault and ends the process.
  static void check(const Cache& cache) { check(*cache.core_); }

  // For tests that introduce faults. The cache must not be in use.
  static Index& index(Cache& cache);
  static Policy& policy(Cache& cache);
  static Stats& totals(Cache& cache);
  static Slots& slots(Executable& executable) { return executable.slots_; }
  static GraphExec& exec(Executable& executable) { return executable.exec_; }
  static Template& base(Executable& executable) { return executable.base_; }

 private:
  using Locked = AsideMap<const Entry*, bool>;  // Entries whose locks the checker holds.

  friend void check_after_call(void* core);

  static void check(Core& core);
  static bool has_many_entries(Core& core);
  static std::string find_fault(Core& core);
  static std::string fault_of(Core& core, const Locked& locked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core.store.mutex_);
  static std::string fault_of_policy(const Policy& policy, const Signatures& signatures, const Index& index);
  static std::string fault_of(const Policy& policy, const Entry& entry);
  static std::string fault_of(const Executable& executable);
  static std::string fault_of_sharing(const Index& index, const Locked& locked);
  static std::string fault_of_handles(const Index& index, const Locked& locked);
  static std::string fault_of_counters(const Store& store, Index& index, const Locked& locked);
};

}  // namespace graphcache
