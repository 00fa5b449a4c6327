// Two ways to enqueue work: through a run's recorder with slots, and directly with the slots' values. Both have the
// same members, so one template enqueues a program in either way.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "program.h"

// lane.cc is compiled twice, and a null stream is another stream in each compilation. So what calls CUDA with a stream
// has another name in each.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define GRAPHCACHE_TEST_UNIT per_thread
#else
#define GRAPHCACHE_TEST_UNIT plain
#endif

namespace graphcache::test::differential {
inline namespace GRAPHCACHE_TEST_UNIT {

// The values of a run, or slots for them.
template <template <class> class Of>
struct Operands {
  Of<int*> out;         // for kernels and sets
  Of<const int*> in;    // for kernels
  Of<int*> to;          // for copies: any kind of memory
  Of<const int*> from;  // for copies: any kind of memory
  Of<int*> base;        // of the places 0 to 5
  Of<int> a;
  Of<unsigned char> b;
  Of<dim3> grid;
  Of<dim3> pairs;  // a grid of an even size
  Of<unsigned> block;
  Of<std::size_t> shared_bytes;
  Of<std::size_t> bytes;
  Of<float> real;
  Of<long long> wide;
  Of<Small> small;
  Of<Big> big;
  Of<Aligned> aligned;
#define GRAPHCACHE_TEST_MEMBER(name, size, alignment, before, other) Of<Bytes<size, alignment>> name;
  GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_MEMBER)
#undef GRAPHCACHE_TEST_MEMBER
};
template <class T>
using Value = T;
using Values = Operands<Value>;
using Slots = Operands<Slot>;

using Streams = std::array<cudaStream_t, kStreams>;

// All its other bytes are zero, because some launches fail with others (fact 26).
inline cudaLaunchAttribute make_attribute(cudaLaunchAttributeID id) {
  cudaLaunchAttribute attribute;
  std::memset(&attribute, 0, sizeof attribute);
  attribute.id = id;
  return attribute;
}

// kernel<<<grid, block, shared_bytes, stream>>>(values...), with an attribute if one is given.
template <class... P>
cudaError_t launch(cudaStream_t stream, const cudaLaunchAttribute* attribute, void (*kernel)(P...), dim3 grid,
                   dim3 block, std::size_t shared_bytes, std::type_identity_t<P>... values) {
  void* arguments[] = {static_cast<void*>(&values)...};
  const void* const symbol = reinterpret_cast<const void*>(kernel);
  if (attribute == nullptr) return cudaLaunchKernel(symbol, grid, block, arguments, shared_bytes, stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = const_cast<cudaLaunchAttribute*>(attribute);
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, symbol, arguments);
}

class Recorded {
 public:
  using Source = Slots;

  // Without slots, every operand is a constant.
  Recorded(Recorder& recorder, const Slots* slots) : recorder_(recorder), slots_(slots) {}

  template <class T, class U>
  Arg<T> operand(bool is_slot, Slot<U> Slots::*slot, T constant) const {
    return is_slot && slots_ != nullptr ? Arg<T>(slots_->*slot) : Arg<T>(constant);
  }
  template <class... P>
  cudaError_t launch(cudaStream_t stream, void (*kernel)(P...), Arg<dim3> grid, Arg<dim3> block,
                     Arg<std::size_t> shared_bytes, Arg<std::type_identity_t<P>>... values) {
    recorder_.on(stream).launch(kernel, LaunchShape(grid, block, shared_bytes), values...);
    return cudaSuccess;  // the run reports the recorder's error
  }
  cudaError_t copy(cudaStream_t stream, Arg<void*> to, Arg<const void*> from, Arg<std::size_t> bytes,
                   cudaMemcpyKind kind) {
    recorder_.on(stream).memcpy(to, from, bytes, kind);
    return cudaSuccess;
  }
  cudaError_t set(cudaStream_t stream, Arg<void*> to, Arg<int> value, Arg<std::size_t> bytes) {
    recorder_.on(stream).memset(to, value, bytes);
    return cudaSuccess;
  }
  cudaError_t take_values(cudaStream_t stream, Arg<dim3> grid, Arg<dim3> block, Arg<int*> out, Written* written) {
    recorder_.on(stream).write(&written->a, slots_->a);
    recorder_.on(stream).write(&written->small, slots_->small);
    return launch(stream, take_pointers, grid, block, std::size_t{0}, out, static_cast<const int*>(&written->a),
                  static_cast<const Small*>(&written->small));
  }
  void keep(std::shared_ptr<void> owner) { recorder_.keep(std::move(owner)); }
  bool has_values() const { return slots_ != nullptr; }

 private:
  Recorder& recorder_;
  const Slots* slots_;
};

class Direct {
 public:
  using Source = Values;

  explicit Direct(const Values* values) : values_(values) {}

  template <class T, class U>
  T operand(bool is_slot, U Values::*value, T constant) const {
    return is_slot && values_ != nullptr ? static_cast<T>(values_->*value) : constant;
  }
  template <class... P>
  cudaError_t launch(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes,
                     std::type_identity_t<P>... values) {
    return differential::launch(stream, nullptr, kernel, grid, block, shared_bytes, values...);
  }
  cudaError_t copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  }
  cudaError_t set(cudaStream_t stream, void* to, int value, std::size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, stream);
  }
  cudaError_t take_values(cudaStream_t stream, dim3 grid, dim3 block, int* out, Written* /*written*/) {
    return launch(stream, differential::take_values, grid, block, 0, out, values_->a, values_->small);
  }
  void keep(const std::shared_ptr<void>& /*owner*/) {}
  bool has_values() const { return values_ != nullptr; }

 private:
  const Values* values_;
};

}  // namespace GRAPHCACHE_TEST_UNIT
}  // namespace graphcache::test::differential
