// One copy of a lane's memory, used by the cache or by the direct runs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "graphcache/stream.h"
#include "kernels.h"
#include "program.h"

namespace graphcache::test::differential {

inline bool is_on_host(int place) {
  const MemoryKind kind = kKindOfPlace[static_cast<std::size_t>(place)];
  return kind == MemoryKind::kPinned || kind == MemoryKind::kPageable;
}

// The data that a host function changes.
struct HostArgument {
  int* words;
  int constant;
};
void change_on_host(void* argument);

// Pageable memory of kWords words of its own.
int* map_words();
void unmap_words(int* words);

// Ends the process with status 3 after an unexpected CUDA error, because it may be sticky.
void check(cudaError_t error, const char* what);
// The text that is printed then.
void set_world_in_flight(const std::string& text);

class Memory {
 public:
  // With random contents. The pinned places may be memory that is registered.
  Memory(Random& random, const std::vector<Program>& programs, bool registers);
  ~Memory();
  Memory(const Memory&) = delete;

  int* place(int number) const;
  int* scratch() { return &pageable_[pageable_.size() / 2]; }  // pageable, and no place
  int* local = nullptr;                                        // where Kind::kToLocal copies to

  // Device memory of an operation of any program: programs of one lane run one after another.
  Written* written(std::ptrdiff_t op) { return written_ + op; }
  HostArgument* host_arguments(int program) { return host_arguments_[static_cast<std::size_t>(program)]; }

  // Describes the first place that differs; empty if there is none. Only work on `stream` may be in flight on either
  // memory.
  static std::string difference(const Memory& got, const Memory& wanted, StreamArg stream);
  // Registers the pinned places anew: they are other memory then, at the same address. If `with_device`, frees the
  // device's and managed places and allocates them anew, and returns whether some have moved. REQUIRES: no work in
  // flight.
  bool renew(bool with_device);
  // Copies the contents of `other`.
  void assign(const Memory& other, StreamArg stream);

 private:
  // All places of each kind, of which only some are used. kPageable is a vector.
  std::array<int*, kMemoryKinds> blocks_{};
  std::vector<int> pageable_;
  const bool registers_;
  Written* written_ = nullptr;
  int* staging_ = nullptr;                     // pinned memory in which the device's places are read
  std::vector<HostArgument*> host_arguments_;  // of each program, in pinned memory
};

}  // namespace graphcache::test::differential
