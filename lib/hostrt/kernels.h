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

  // The size of a structure with the parameters as its members.
  std::size_t padded_bytes() const;
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

  // Takes all values from one buffer, which has them at the kernel's offsets. `size` may include padding at the end.
  void assign_packed(const Kernel& kernel, const void* buffer, std::size_t size);

  // Overwrites some of the bytes; returns false if the range is out of bounds.
  bool write(std::size_t offset, const void* bytes, std::size_t size);

  void** pointers() const { return pointers_.get(); }

  // The buffer, in the form of the driver's `extra`; null if the values were given one by one.
  void** extra() const { return packed_ != nullptr ? packed_->extra : nullptr; }

 private:
  void lay_out(const Kernel& kernel);

  struct Packed {
    std::size_t size;
    void* extra[5];
  };

  const Kernel* kernel_ = nullptr;
  std::byte* begin_ = nullptr;
  std::unique_ptr<Packed> packed_;
  std::unique_ptr<std::byte[]> bytes_;
  std::unique_ptr<void*[]> pointers_;
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_KERNELS_H_
