// One copy of a lane's memory: what the cache works on, or what is worked on directly.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "program.h"

namespace graphcache::test::differential {

inline bool is_on_host(int place) {
  const MemoryKind kind = kKindOfPlace[static_cast<std::size_t>(place)];
  return kind == MemoryKind::kPinned || kind == MemoryKind::kPageable;
}

// What a host function changes.
struct HostArgument {
  int* words;
  int constant;
};
void change_on_host(void* argument);

// Ends the process with status 3 after a CUDA error that nobody expected: it may be sticky.
void check(cudaError_t error, const char* what);
// What such an end says.
void set_world_in_flight(const std::string& text);

class Memory {
 public:
  // Of random content.
  Memory(Random& random, const std::vector<Program>& programs);
  ~Memory();
  Memory(const Memory&) = delete;

  int* place(int number) const;
  HostArgument* host_arguments(int program) { return host_arguments_[static_cast<std::size_t>(program)].data(); }

  // The first place that differs and how, or empty. Nothing may be in flight that writes either but on `stream`.
  static std::string difference(const Memory& got, const Memory& wanted, cudaStream_t stream);
  // Takes over the content of `other`.
  void assign(const Memory& other, cudaStream_t stream);

 private:
  // All places of each kind, though only some of them are used. kPageable is a vector.
  std::array<int*, kMemoryKinds> blocks_{};
  std::vector<int> pageable_;
  int* staging_ = nullptr;  // Pinned: where the device's places are read.
  std::vector<std::vector<HostArgument>> host_arguments_;
};

}  // namespace graphcache::test::differential
