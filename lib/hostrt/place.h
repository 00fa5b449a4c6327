// Where something happened: the runtime call, and its place in the program's code. Recorded for every object that
// ended, so that a report of misuse can name both places.

#ifndef GRAPHCACHE_LIB_HOSTRT_PLACE_H_
#define GRAPHCACHE_LIB_HOSTRT_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace graphcache::hostrt {

struct Place {
  const char* function = nullptr;  // null for an unknown place
  std::uint64_t call = 0;          // running number; 0 before a call has begun and for calls of hostrt itself
  std::uint64_t thread = 0;
  const void* address = nullptr;  // return address in the caller's code

  bool is_known() const { return function != nullptr; }
};

inline bool operator==(const Place& a, const Place& b) {
  return a.function == b.function && a.call == b.call && a.thread == b.thread && a.address == b.address;
}

// "cudaGraphLaunch, call 57, thread 2, at program+0x1234 (symbol+0x5)". addr2line accepts the offset.
std::string to_string(const Place& place);

// The function at an address as written in the source, or "program+0x1234" if it has no symbol.
std::string name_of_function(const void* function);

// Where recently destroyed objects ended, by the bits of their handles or the addresses of their memory. Bounded,
// because a program may destroy any number of objects.
class Endings {
 public:
  Endings() { ring_.reserve(kCapacity); }  // destroying an object must not fail for lack of memory

  void add(std::uintptr_t what) {
    if (ring_.size() < kCapacity) {
      ring_.push_back({what, here});
    } else {
      ring_[next_] = {what, here};
    }
    next_ = (next_ + 1) % kCapacity;
  }
  void add(const void* what) { add(reinterpret_cast<std::uintptr_t>(what)); }

  // The last place where it ended, or an unknown place.
  Place find(const void* what) const;

  // The call that is running.
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
