#include "policy/policy.h"

#include <string>

#include "checks.h"

namespace graphcache {

// Recomputes every count of the policy.
std::string StructureChecker::find_fault(const Policy& policy) {
  struct Counted {
    std::size_t members = 0;
    KeyId table = kNoKey;
  };
  AsideMap<const Policy::Class*, Counted> classes;
  std::size_t executables = 0, bytes = 0, with_slots = 0, unread = 0, unpinned = 0;
  const auto of = [](KeyId key, const char* what) { return "key " + std::to_string(key) + ": " + what; };
  for (KeyId key = 0; key < policy.entries_.size(); ++key) {
    const Policy::Entry& entry = policy.entries_[key];
    Counted alone;
    if ((entry.family != nullptr) != (entry.facts.signature != 0 && entry.of_class != nullptr)) {
      return of(key, "it has a family and no signature, or no class");
    }
    if (entry.family != nullptr) {
      const auto family = policy.families_.find({entry.facts.signature, entry.facts.stream});
      if (family == policy.families_.end() || &family->second != entry.family)
        return of(key, "it is of another family");
      const auto of_class = entry.family->classes.find(entry.facts.table_class);
      if (of_class == entry.family->classes.end() || &of_class->second != entry.of_class) {
        return of(key, "it is of another class");
      }
      if (entry.is_unread) return of(key, "it is unread, and has a family");
    }
    Counted& counted = entry.family != nullptr ? classes[entry.of_class] : alone;
    ++counted.members;
    if (!policy.is_live(key)) continue;
    ++executables;
    std::size_t size = entry.facts.bytes;
    if (policy.has_table(key)) {
      if (entry.family == nullptr) return of(key, "it has a table and no class");
      if (counted.table != kNoKey) return of(key, "it has the second table of a class");
      counted.table = key;
      size += entry.facts.table_bytes + entry.of_class->set_bytes;
    }
    bytes += size;
    with_slots += entry.kind == Policy::Kind::kSlots ? 1 : 0;
    unread += entry.is_unread ? 1 : 0;
    unpinned += entry.is_pinned ? 0 : 1;
  }
  if (executables != policy.executables_) return "the executables are counted wrongly";
  if (bytes != policy.bytes_) return "the device memory of executables is summed up wrongly";
  if (unread != policy.unread_) return "the executables of unread graphs are counted wrongly";
  if (with_slots != policy.with_slots_) return "the executables with updater nodes for slots are counted wrongly";

  for (const auto& [id, family] : policy.families_) {
    if (family.classes.empty()) return "a family without keys is kept";
    for (const auto& [number, of_class] : family.classes) {
      const Counted& counted = classes[&of_class];
      if (counted.members == 0 || of_class.members != counted.members) return "the members of a class are wrong";
      if (of_class.table != counted.table) return "the table of a class is another's";
    }
  }

  KeyId older = kNoKey;
  for (KeyId key = policy.oldest_; key != kNoKey; older = key, key = policy.entries_[key].newer) {
    const Policy::Entry& entry = policy.entries_[key];
    if (!policy.is_live(key) || entry.is_pinned) return of(key, "it is in the order of use");
    if (entry.older != older) return of(key, "the order of use is linked wrongly");
    // If there are more entries than a move passes over, the order need not be exact.
    const bool is_exact = policy.entries_.size() <= Policy::kMostPassed;
    if (is_exact && older != kNoKey && policy.entries_[older].last_use > entry.last_use) {
      return of(key, "it is not in order of use");
    }
    if (unpinned-- == 0) return of(key, "the order of use is longer than it can be");
  }
  if (policy.newest_ != older) return "the order of use ends elsewhere than it says";
  return unpinned == 0 ? "" : "an executable is not in the order of use";
}

}  // namespace graphcache
