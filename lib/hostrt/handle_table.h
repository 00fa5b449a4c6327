// Handles that are never reused, unless a test wants it.
//
// A real handle is the address of an object. If the allocator reuses that address, a stale handle becomes valid again
// and its use goes unnoticed. Here a handle names a slot and the slot's generation, so a stale handle is always
// recognised, and a lookup costs an index and a comparison. The upper bits make it a non-canonical address, so a
// program that dereferences a handle faults at once. The table records where each handle ended.

#ifndef GRAPHCACHE_LIB_HOSTRT_HANDLE_TABLE_H_
#define GRAPHCACHE_LIB_HOSTRT_HANDLE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "place.h"

namespace graphcache::hostrt {

enum class HandleKind : std::uintptr_t { kStream = 1, kEvent, kGraph, kNode, kExecutable, kUserObject };

template <typename T, HandleKind kKind>
class HandleTable {
 public:
  explicit HandleTable(Endings& endings) : endings_(endings) {}

  // Takes ownership of the object and returns its handle.
  std::uintptr_t add(std::unique_ptr<T> object) {
    std::uint32_t index = first_free_;  // oldest first, so that generations are used up evenly
    if (index == kNone) {
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      first_free_ = slots_[index].next_free;
    }
    slots_[index].object = std::move(object);
    ++live_;
    return handle_of(index);
  }

  // Returns null for a handle that was destroyed or never belonged to this table.
  T* find(const void* handle) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    const std::size_t index = (bits >> kIndexShift) & kIndexMask;
    if ((bits & kKindAndTagMask) != (kTag | static_cast<std::uintptr_t>(kKind)) || index >= slots_.size())
      return nullptr;
    const Slot& slot = slots_[index];
    return slot.generation == ((bits >> kGenerationShift) & kGenerationMask) ? slot.object.get() : nullptr;
  }

  // Whether this table created the handle, even if it has been destroyed since.
  bool was_given_out(const void* handle) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    return (bits & kKindAndTagMask) == (kTag | static_cast<std::uintptr_t>(kKind)) &&
           ((bits >> kIndexShift) & kIndexMask) < slots_.size();
  }

  // Invalidates the handle and returns the object.
  std::unique_ptr<T> remove(const void* handle) {
    if (find(handle) == nullptr) return nullptr;
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    return release(static_cast<std::uint32_t>((bits >> kIndexShift) & kIndexMask));
  }

  void clear() {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].object != nullptr) release(index);
    }
  }

  std::size_t size() const { return live_; }

  // From now on the next object gets the handle of the last one that was removed, as by an allocator.
  void reuse(bool on) { reuses_ = on; }

  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.object != nullptr) visit(*slot.object);
    }
  }

 private:
  struct Slot {
    std::uint32_t generation = 0;
    std::uint32_t next_free = 0;
    std::unique_ptr<T> object;
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // Bits: 12 of tag, 24 of generation, 24 of index, 4 of kind.
  static constexpr int kIndexShift = 4;
  static constexpr int kGenerationShift = 28;
  static constexpr std::uintptr_t kIndexMask = 0xff'ffff;
  static constexpr std::uintptr_t kGenerationMask = 0xff'ffff;
  static constexpr std::uintptr_t kTag = std::uintptr_t{0xc0d} << 52;
  static constexpr std::uintptr_t kKindAndTagMask = (std::uintptr_t{0xfff} << 52) | 0xf;

  std::uintptr_t handle_of(std::uint32_t index) const {
    return kTag | (static_cast<std::uintptr_t>(slots_[index].generation) << kGenerationShift) |
           (static_cast<std::uintptr_t>(index) << kIndexShift) | static_cast<std::uintptr_t>(kKind);
  }

  // The free slots are a list in the slots: destroying an object must not fail for lack of memory.
  std::unique_ptr<T> release(std::uint32_t index) {
    Slot& slot = slots_[index];
    endings_.add(handle_of(index));
    --live_;
    if (reuses_) {
      if (first_free_ == kNone) last_free_ = index;
      slot.next_free = std::exchange(first_free_, index);
    } else if (slot.generation != kGenerationMask) {  // A slot that has used all its generations is not reused.
      ++slot.generation;
      slot.next_free = kNone;
      (first_free_ == kNone ? first_free_ : slots_[last_free_].next_free) = index;
      last_free_ = index;
    }
    return std::move(slot.object);
  }

  Endings& endings_;
  std::vector<Slot> slots_;
  std::uint32_t first_free_ = kNone, last_free_ = kNone;  // The last one counts only if there is a first one.
  std::size_t live_ = 0;
  bool reuses_ = false;
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_HANDLE_TABLE_H_
