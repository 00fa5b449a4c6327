// Where things happened: the call that a program made, and where in its code. Kept for every object that ended, so that
// a misuse can be reported with both places.

#ifndef GRAPHCACHE_LIB_HOSTRT_PLACE_H_
#define GRAPHCACHE_LIB_HOSTRT_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace graphcache::hostrt {

struct Place {
  const char* function = nullptr;  // null: nowhere
  std::uint64_t call = 0;  // the running number; 0 for a call that has not begun, and for those of hostrt itself
  std::uint64_t thread = 0;
  const void* address = nullptr;  // behind the call in the caller's code

  bool is_known() const { return function != nullptr; }
};

inline bool operator==(const Place& a, const Place& b) {
  return a.function == b.function && a.call == b.call && a.thread == b.thread && a.address == b.address;
}

// "cudaGraphLaunch, call 57, thread 2, at program+0x1234 (symbol+0x5)". The offset is what addr2line takes.
std::string to_string(const Place& place);

// Where the last objects ended, by the bits of their handles or the addresses of memory. Bounded, because a program may
// end any number of them.
class Endings {
 public:
  Endings() { ring_.reserve(kCapacity); }  // an object's end must not fail for want of memory

  void add(std::uintptr_t what) {
    if (ring_.size() < kCapacity) {
      ring_.push_back({what, here});
    } else {
      ring_[next_] = {what, here};
    }
    next_ = (next_ + 1) % kCapacity;
  }
  void add(const void* what) { add(reinterpret_cast<std::uintptr_t>(what)); }

  // The last end of it, or a place that is not known.
  Place find(const void* what) const;

  // The call that goes on.
  Place here;

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 16;

  struct Ending {
    std::uintptr_t what;
    Place where;
  };

  std::vector<Ending> ring_;
  std::size_t next_ = 0;
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_PLACE_H_
