// Families: the entries of one signature, which can share executables. No CUDA call. Not thread-safe: the cache's lock
// guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/signature.h"

namespace graphcache {

struct Entry;

struct Family {
  // In place of a stream's number (cudaStreamGetId): of members that come on any.
  static constexpr std::uint64_t kAnyStream = 0;

  std::uint64_t id = 0;  // From 1, in the order in which they were founded.
  const Signature* signature = nullptr;
  std::uint64_t stream = kAnyStream;
  std::size_t members = 0;
  std::size_t executables = 0;
  // The entry that has the executable which members without one of their own take over from each other, if any.
  Entry* spare_of = nullptr;
  bool refuses_table = false;  // One could not be had, or had no room.

  // Members that one table can hold (exec/parameter_table.h), by its number.
  struct Class {
    std::size_t members = 0;
    std::size_t executables = 0;
    // What they have paid more than they would have with a table, since they last got one.
    Cost rent = 0;
  };
  std::unordered_map<std::uint64_t, Class> classes;
};

class Families {
 public:
  // The first family of the signature and the stream that was founded after that of the id `beyond`; a new one if there
  // is none. If that throws, nothing has changed.
  Family* join(const Signature& signature, std::uint64_t stream, std::uint64_t row_class, std::uint64_t beyond = 0);
  // A family without members is no more.
  void leave(Family* family, std::uint64_t row_class);

  std::size_t size() const { return size_; }

 private:
  friend class Verifier;

  // More than one where the runtime refused an update between two graphs of the same signature.
  std::unordered_map<Signature, std::vector<std::unique_ptr<Family>>> of_signature_;
  std::size_t size_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace graphcache
