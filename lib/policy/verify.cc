#include <string>

#include "policy/aside.h"
#include "policy/policy.h"

namespace graphcache {

std::string Policy::find_fault() const {
  struct Counted {
    std::size_t members = 0, executables = 0;
    KeyId table = kNoKey;
  };
  AsideMap<const Class*, Counted> classes;
  AsideMap<const Shape*, std::size_t> shapes;
  std::size_t keys = 0, executables = 0, units = 0, bytes = 0, with_slots = 0, tables = 0, unpinned = 0;
  const auto of = [](KeyId key, const char* what) { return "key " + std::to_string(key) + ": " + what; };
  for (KeyId key = 0; key < entries_.size(); ++key) {
    const Entry& entry = entries_[key];
    if (entry.family == nullptr) {
      if (is_live(key)) return of(key, "it has an executable and no template");
      continue;
    }
    ++keys;
    const auto shape = shapes_.find(entry.facts.shape);
    if (shape == shapes_.end() || &shape->second != entry.shape) return of(key, "it is of another shape");
    ++shapes[entry.shape];
    const auto family = families_.find(family_of(entry.facts));
    if (family == families_.end() || &family->second != entry.family) return of(key, "it is of another family");
    const auto of_class = entry.family->classes.find(entry.facts.table_class);
    if (of_class == entry.family->classes.end() || &of_class->second != entry.of_class) {
      return of(key, "it is of another class");
    }
    Counted& counted = classes[entry.of_class];
    ++counted.members;
    if (!is_live(key)) continue;
    ++executables;
    ++counted.executables;
    std::size_t size = entry.facts.bytes;
    if (has_table(key)) {
      if (counted.table != kNoKey) return of(key, "it has the second table of a class");
      counted.table = key;
      size += entry.facts.table_bytes + entry.of_class->set_bytes;
    }
    bytes += size;
    units += this->units(entry, size);
    with_slots += entry.kind == Kind::kSlots ? 1 : 0;
    tables += has_table(key) ? 1 : 0;
    unpinned += entry.is_pinned ? 0 : 1;
  }
  if (keys != keys_) return "the keys with templates are counted wrongly";
  if (executables != executables_ || units != units_) return "the executables are counted wrongly";
  if (bytes != bytes_) return "the device memory of executables is summed up wrongly";
  if (with_slots != with_slots_ || tables != tables_) return "device-updated executables are counted wrongly";

  if (shapes.size() != shapes_.size()) return "a shape without keys is kept";
  for (const auto& [id, shape] : shapes_) {
    if (shapes[&shape] != shape.keys) return "the keys of a shape are counted wrongly";
    for (const KeyId key : shape.unread) {
      if (entries_[key].shape != &shape) return of(key, "it is listed as unread, and of another shape");
      if (!is_alone(entries_[key].facts)) return of(key, "it is listed as unread, and was read");
    }
  }

  std::size_t with_siblings = 0;
  for (const auto& [id, family] : families_) {
    with_siblings += id.first < kAlone ? 1 : 0;
    if (family.classes.empty()) return "a family without keys is kept";
    for (const auto& [number, of_class] : family.classes) {
      const Counted& counted = classes[&of_class];
      if (counted.members == 0 || of_class.members != counted.members) return "the members of a class are wrong";
      if (of_class.executables != counted.executables) return "the executables of a class are wrong";
      if (of_class.table != counted.table) return "the table of a class is another's";
    }
    if (family.shared == kNoKey) continue;
    const Entry& shared = entries_[family.shared];
    if (!is_live(family.shared) || has_table(family.shared) || shared.is_pinned || shared.family != &family) {
      return of(family.shared, "it has the shared executable of a family, and cannot lend");
    }
  }
  if (with_siblings != families_with_siblings_) return "the families are counted wrongly";

  for (const Order* order : {&plain_, &updated_}) {
    KeyId older = kNoKey;
    for (KeyId key = order->oldest; key != kNoKey; older = key, key = entries_[key].newer) {
      const Entry& entry = entries_[key];
      if (!is_live(key) || entry.is_pinned) return of(key, "it is in the order of use");
      if ((entry.kind == Kind::kPlain) != (order == &plain_)) return of(key, "it is in the other kind's order");
      if (entry.older != older) return of(key, "the order of use is linked wrongly");
      // If there are more entries than a move passes over, the order need not be exact.
      const bool is_exact = entries_.size() <= kMostPassed;
      if (is_exact && older != kNoKey && entries_[older].last_use > entry.last_use) {
        return of(key, "it is not in order of use");
      }
      if (unpinned-- == 0) return of(key, "the order of use is longer than it can be");
    }
    if (order->newest != older) return "an order of use ends elsewhere than it says";
  }
  return unpinned == 0 ? "" : "an executable is in no order of use";
}

}  // namespace graphcache
