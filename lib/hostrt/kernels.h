// Registered kernels, and a launch's arguments as a copy of their bytes.

#ifndef GRAPHCACHE_LIB_HOSTRT_KERNELS_H_
#define GRAPHCACHE_LIB_HOSTRT_KERNELS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "graphcache/hostrt.h"

namespace graphcache::hostrt {

struct Kernel {
  const void* function = nullptr;
  std::string name;
  internal::Invoker invoker = nullptr;
  std::vector<internal::Parameter> parameters;
  std::vector<std::size_t> offsets;  // offset of each parameter, at its own alignment
  std::size_t argument_bytes = 0;
  std::size_t argument_alignment = 1;
};

// Returns null for a function that is not registered. The result lives as long as the process.
const Kernel* find_kernel(const void* function);

// The argument values of one launch. They are copied when the launch is made or captured, so the caller's variables may
// change afterwards. The pointer array keeps its address until the next assignment, because
// cudaGraphKernelNodeGetParams returns it.
class Arguments {
 public:
  Arguments() = default;
  Arguments(const Kernel& kernel, void* const* values) { assign(kernel, values); }
  Arguments(const Arguments& other) { *this = other; }
  Arguments(Arguments&&) noexcept = default;
  Arguments& operator=(const Arguments& other);
  Arguments& operator=(Arguments&&) noexcept = default;

  // `values` may be null for a kernel without parameters.
  void assign(const Kernel& kernel, void* const* values);

  // Overwrites some of the bytes; returns false if the range is out of bounds.
  bool write(std::size_t offset, const void* bytes, std::size_t size);

  void** pointers() const { return pointers_.get(); }

 private:
  void lay_out(const Kernel& kernel);

  const Kernel* kernel_ = nullptr;
  std::unique_ptr<std::byte[]> bytes_;
  std::unique_ptr<void*[]> pointers_;
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_KERNELS_H_
