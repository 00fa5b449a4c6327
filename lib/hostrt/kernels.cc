#include "kernels.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace graphcache::hostrt {
namespace {

// Static objects fill the registry in an unspecified order, so it is a function-local object. It is never destroyed, so
// that static objects may still launch kernels while the process exits.
struct Registry {
  std::mutex mutex;
  using Kernels = std::unordered_map<const void*, Kernel>;
  Kernels kernels;                          // map nodes keep their addresses
  std::vector<Kernels::node_type> formers;  // of libraries that were unloaded
};

Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

std::uintptr_t align(std::uintptr_t place, std::size_t alignment) {
  return (place + alignment - 1) / alignment * alignment;
}

bool are_of_one_library(const void* a, const void* b) {
  Dl_info of_a = {}, of_b = {};
  return dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 && of_a.dli_fbase == of_b.dli_fbase;
}

}  // namespace

const Kernel* find_kernel(const void* function) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.kernels.find(function);
  return found == all.kernels.end() ? nullptr : &found->second;
}

std::size_t Kernel::padded_bytes() const { return align(argument_bytes, argument_alignment); }

Arguments& Arguments::operator=(const Arguments& other) {
  if (this == &other) return *this;
  if (other.kernel_ == nullptr) {
    *this = Arguments();
  } else if (other.packed_ != nullptr) {
    assign_packed(*other.kernel_, other.begin_, other.packed_->size);
  } else {
    assign(*other.kernel_, other.pointers());
  }
  return *this;
}

void Arguments::assign(const Kernel& kernel, void* const* values) {
  if (kernel_ != &kernel) lay_out(kernel);
  packed_ = nullptr;
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    // The caller may pass this very array with one pointer replaced. The other values are then in place already.
    std::memmove(pointers_[i], values[i], kernel.parameters[i].size);
  }
}

void Arguments::assign_packed(const Kernel& kernel, const void* buffer, std::size_t size) {
  if (kernel_ != &kernel) lay_out(kernel);
  if (size != 0) std::memmove(begin_, buffer, size);
  if (packed_ == nullptr) packed_ = std::make_unique<Packed>();
  packed_->size = size;
  void* const extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, begin_, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_->size,
                         CU_LAUNCH_PARAM_END};
  std::copy(std::begin(extra), std::end(extra), packed_->extra);
}

bool Arguments::write(std::size_t offset, const void* bytes, std::size_t size) {
  if (kernel_ == nullptr || offset > kernel_->argument_bytes || size > kernel_->argument_bytes - offset) return false;
  if (size != 0) std::memcpy(begin_ + offset, bytes, size);
  return true;
}

void Arguments::lay_out(const Kernel& kernel) {
  // Some extra space, because a parameter may be over-aligned.
  auto storage = std::make_unique<std::byte[]>(kernel.padded_bytes() + kernel.argument_alignment);
  auto pointers = std::make_unique<void*[]>(kernel.parameters.size() + 1);
  const std::uintptr_t begin = align(reinterpret_cast<std::uintptr_t>(storage.get()), kernel.argument_alignment);
  for (std::size_t i = 0; i < kernel.offsets.size(); ++i) {
    pointers[i] = reinterpret_cast<void*>(begin + kernel.offsets[i]);
  }
  begin_ = reinterpret_cast<std::byte*>(begin);
  bytes_ = std::move(storage);
  pointers_ = std::move(pointers);
  kernel_ = &kernel;
}

namespace internal {

bool add_kernel(const char* name, const void* function, Invoker invoker, const Parameter* parameters,
                std::size_t parameter_count) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Kernel kernel;
  kernel.function = function;
  kernel.name = name;
  kernel.invoker = invoker;
  kernel.parameters.assign(parameters, parameters + parameter_count);
  for (const Parameter& parameter : kernel.parameters) {
    kernel.offsets.push_back(align(kernel.argument_bytes, parameter.alignment));
    kernel.argument_bytes = kernel.offsets.back() + parameter.size;
    kernel.argument_alignment = std::max(kernel.argument_alignment, parameter.alignment);
  }
  const auto found = all.kernels.find(function);
  // It may be where a kernel of an unloaded library was. Other libraries may register the kernel as well.
  if (found != all.kernels.end() && are_of_one_library(function, reinterpret_cast<const void*>(invoker))) {
    all.formers.push_back(all.kernels.extract(found));
  }
  return all.kernels.emplace(function, std::move(kernel)).second;
}

}  // namespace internal
}  // namespace graphcache::hostrt
