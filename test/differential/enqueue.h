// Enqueues the work of a program in one of the two ways of ways.h. Everything that decides what is enqueued, and in
// which order, is here and used by both.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

#include "kernels.h"
#include "memory.h"
#include "program.h"
#include "runtime.h"
#include "ways.h"

namespace graphcache::test::differential {
inline namespace GRAPHCACHE_TEST_UNIT {

// Makes each operation wait for the earlier operations that it shares a place with. All targets of slots count as one
// place; sources are never written.
class Order {
 public:
  Order(const Streams& streams, cudaEvent_t event) : streams_(streams), event_(event) {}

  void reads(int stream, int place) {
    if (place >= kSources) return;
    Uses& uses = begin(stream, place);
    wait_for(stream, uses.writers);
    uses.readers |= 1u << stream;
  }
  void writes(int stream, int place) {
    Uses& uses = begin(stream, place);
    wait_for(stream, uses.writers | uses.readers);
    uses = {1u << stream, 0};
  }
  // Joins all other streams into the run's own stream.
  void join() {
    wait_for(0, forked_);
    forked_ = 1;
    uses_ = {};
  }
  cudaError_t error() const { return error_; }

 private:
  struct Uses {
    unsigned writers = 0, readers = 0;  // a bit for each stream
  };

  Uses& begin(int stream, int place) {
    if ((forked_ >> stream & 1) == 0) wait_for(stream, 1);
    forked_ |= 1u << stream;
    return uses_[static_cast<std::size_t>(place < kTargets ? place : kTargets)];
  }
  void wait_for(int stream, unsigned others) {
    for (int other = 0; other < kStreams; ++other) {
      if (other == stream || (others >> other & 1) == 0 || error_ != cudaSuccess) continue;
      error_ = cudaEventRecord(event_, streams_[static_cast<std::size_t>(other)]);
      if (error_ == cudaSuccess) error_ = cudaStreamWaitEvent(streams_[static_cast<std::size_t>(stream)], event_, 0);
    }
  }

  const Streams& streams_;
  const cudaEvent_t event_;
  unsigned forked_ = 1;
  std::array<Uses, kTargets + 1> uses_{};
  cudaError_t error_ = cudaSuccess;
};

// What Kind::kNotUnderCapture does in a run.
struct Library {
  bool refuses;  // also those that do not always refuse
  bool fails;    // those that always refuse, when they are called directly
};

template <class Way, class Nested>
class Enqueuer {
 public:
  // `nested(op, stream)` makes a nested run.
  Enqueuer(Way way, const Program& program, Memory& memory, const Streams& streams, cudaEvent_t event, Library library,
           Nested nested)
      : way_(way),
        program_(program),
        memory_(memory),
        streams_(streams),
        order_(streams, event),
        library_(library),
        nested_(nested) {}

  cudaError_t enqueue(HostArgument* host_arguments) {
    cudaError_t error = cudaSuccess;
    for (std::size_t i = 0; i < program_.ops.size() && error == cudaSuccess; ++i) {
      const Op& op = program_.ops[i];
      order(op);
      error = order_.error() != cudaSuccess ? order_.error() : perform(op, &host_arguments[i]);
    }
    order_.join();
    return error != cudaSuccess ? error : order_.error();
  }

 private:
  using Source = typename Way::Source;

  // The operands of an operation.
  template <class T = int*>
  auto out(const Op& op) {
    return way_.template operand<T>(op.has(kSlotOut), &Source::out, place(op.out));
  }
  auto in(const Op& op) { return way_.template operand<const int*>(op.has(kSlotIn), &Source::in, place(op.in)); }
  auto other(const Op& op) { return way_.template operand<const int*>(program_.shared, &Source::in, place(op.other)); }
  auto a(const Op& op) { return way_.template operand<int>(op.has(kSlotA), &Source::a, op.a); }
  auto b(const Op& op) { return way_.template operand<int>(op.has(kSlotB), &Source::b, op.b); }
  auto grid(const Op& op) { return way_.template operand<dim3>(op.has(kSlotGrid), &Source::grid, grid_of(op)); }
  auto block(const Op& op) { return way_.template operand<dim3>(op.has(kSlotBlock), &Source::block, dim3(op.block)); }
  auto shared_bytes(const Op& op) {
    return way_.template operand<std::size_t>(op.has(kSlotShared), &Source::shared_bytes, std::size_t{0});
  }
  auto bytes(const Op& op) {
    const std::size_t constant = 1 + static_cast<std::size_t>(op.b) * 7 % (kWords * sizeof(int));
    return way_.template operand<std::size_t>(op.has(kSlotBytes), &Source::bytes, constant);
  }
  int* place(int number) { return memory_.place(number); }
  static dim3 grid_of(const Op& op) { return dim3(op.grid_x, op.grid_y); }

  bool is_slot(const Op& op, SlotBit bit) const { return way_.has_values() && op.has(bit); }

  template <class Kernel, class... Args>
  cudaError_t launch(const Op& op, Kernel kernel, Args... args) {
    return way_.launch(stream(op), kernel, grid(op), block(op), shared_bytes(op), args...);
  }
  template <class Kernel, class... Args>
  cudaError_t launch_directly(const Op& op, const cudaLaunchAttribute* attribute, Kernel kernel, dim3 grid,
                              Args... args) {
    return differential::launch(stream(op), attribute, kernel, grid, dim3(op.block), 0, args...);
  }
  cudaStream_t stream(const Op& op) const { return streams_[static_cast<std::size_t>(op.stream)]; }

  void order(const Op& op);
  cudaError_t perform(const Op& op, HostArgument* host_argument);
  cudaError_t structure(const Op& op);
  template <class Lead, class T, class U>
  cudaError_t take(const Op& op, void (*kernel)(Lead, T, unsigned char, int*), U Source::*slot);
  cudaError_t copy(const Op& op);
  cudaError_t copy_from_temporary(const Op& op);
  cudaError_t copy_from_kept(const Op& op);
  cudaError_t cluster(const Op& op);
  cudaError_t allocate(const Op& op);
  cudaError_t call_library(const Op& op);

  Way way_;
  const Program& program_;
  Memory& memory_;
  const Streams& streams_;
  Order order_;
  Library library_;
  Nested nested_;
};

// Orders the operation after the earlier operations that it depends on.
template <class Way, class Nested>
void Enqueuer<Way, Nested>::order(const Op& op) {
  const int target = is_slot(op, kSlotOut) ? kTargets : op.out, source = is_slot(op, kSlotIn) ? kSources : op.in;
  switch (op.kind) {
    case Kind::kMix:
      order_.reads(op.stream, program_.shared ? kSources : op.other);
      [[fallthrough]];
    case Kind::kCopy:
      order_.reads(op.stream, source);
      return order_.writes(op.stream, target);
    case Kind::kSmall:
    case Kind::kBig:
    case Kind::kAligned:
    case Kind::kNumbers:
    case Kind::kStructure:
    case Kind::kSet:
    case Kind::kClusterOf2:
    case Kind::kWrite:
      return order_.writes(op.stream, target);
    case Kind::kCooperative:
    case Kind::kDirectMix:
    case Kind::kNotUnderCapture:
      order_.reads(op.stream, op.other);
      [[fallthrough]];
    case Kind::kMixAt:
    case Kind::kProgrammatic:
    case Kind::kAllocate:
      order_.reads(op.stream, op.in);
      [[fallthrough]];
    case Kind::kCluster:
    case Kind::kSet2d:
      return order_.writes(op.stream, op.out);
    case Kind::kFromTemporary:
    case Kind::kFromKept:
      return order_.writes(op.stream, op.variant ? op.out : target);
    case Kind::kToLocal:
      order_.reads(op.stream, source);
      return order_.writes(op.stream, kSink);  // All copies to it are in order.
    case Kind::kHostFunction:
      return order_.writes(op.stream, kPinnedWork);
    case Kind::kNested:
    case Kind::kNestedWithValues:
      return order_.join();
    case Kind::kQuery:
      return;
  }
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::perform(const Op& op, HostArgument* host_argument) {
  switch (op.kind) {
    case Kind::kMix:
      return launch(op, op.variant ? mix_otherwise : mix, out(op), in(op), other(op), a(op), b(op));
    case Kind::kMixAt:
      return launch(op, mix_at, way_.template operand<int*>(op.has(kSlotOut), &Source::base, place(0)), op.out, op.in,
                    a(op), b(op));
    case Kind::kSmall: {
      Small small;
      std::memset(&small, 0, sizeof small);
      small.a = static_cast<char>(op.a), small.b = op.b, small.c = op.a;
      return launch(op, take_small, way_.template operand<Small>(op.has(kSlotWhole), &Source::small, small), out(op));
    }
    case Kind::kBig: {
      Big big;
      for (int i = 0; i < 128; ++i) big.v[i] = op.a * i + op.b;
      return launch(op, take_big, out(op), way_.template operand<Big>(op.has(kSlotWhole), &Source::big, big),
                    way_.template operand<short>(op.has(kSlotB), &Source::wide, static_cast<short>(op.b)));
    }
    case Kind::kAligned: {
      Aligned aligned;
      for (int i = 0; i < 16; ++i) aligned.v[i] = op.a * i + op.b;
      return launch(op, take_aligned, way_.template operand<char>(op.has(kSlotB), &Source::b, static_cast<char>(op.b)),
                    way_.template operand<Aligned>(op.has(kSlotWhole), &Source::aligned, aligned), out(op));
    }
    case Kind::kNumbers:
      return launch(op, take_numbers, out(op),
                    way_.template operand<float>(op.has(kSlotWhole), &Source::real, static_cast<float>(op.a)),
                    way_.template operand<double>(op.has(kSlotBytes), &Source::real, static_cast<double>(op.b)),
                    way_.template operand<bool>(op.has(kSlotA), &Source::a, op.variant),
                    way_.template operand<unsigned char>(op.has(kSlotB), &Source::b, static_cast<unsigned char>(op.b)),
                    way_.template operand<long long>(op.has(kSlotIn), &Source::wide, op.a));
    case Kind::kStructure:
      return structure(op);
    case Kind::kWrite:
      if (!way_.has_values()) return launch(op, take_values, out(op), op.a, Small{});
      return way_.take_values(stream(op), grid(op), block(op), out(op), memory_.written(&op - program_.ops.data()));
    case Kind::kCopy:
      return copy(op);
    case Kind::kSet:
      return way_.set(stream(op), out<void*>(op), a(op), bytes(op));
    case Kind::kCluster:
    case Kind::kClusterOf2:
      return cluster(op);
    case Kind::kProgrammatic: {
      cudaLaunchAttribute attribute = make_attribute(cudaLaunchAttributeProgrammaticStreamSerialization);
      attribute.val.programmaticStreamSerializationAllowed = 1;
      return launch_directly(op, &attribute, programmatic, grid_of(op), place(op.out), place(op.in), op.a);
    }
    case Kind::kCooperative:
    case Kind::kDirectMix: {
      cudaLaunchAttribute attribute = make_attribute(cudaLaunchAttributeCooperative);
      attribute.val.cooperative = 1;
      return launch_directly(op, op.kind == Kind::kCooperative ? &attribute : nullptr, mix, grid_of(op), place(op.out),
                             place(op.in), place(op.other), op.a, op.b);
    }
    case Kind::kSet2d:
      return set_2d(place(op.out), 32, op.a & 255, 4 + static_cast<std::size_t>(op.b % 3) * 4, 3, stream(op));
    case Kind::kFromTemporary:
      return copy_from_temporary(op);
    case Kind::kFromKept:
      return copy_from_kept(op);
    case Kind::kToLocal: {
      const auto from = way_.template operand<const void*>(op.has(kSlotIn), &Source::in, place(op.in));
      const bool from_host = !is_slot(op, kSlotIn) && is_on_host(op.in);
      return way_.copy(stream(op), memory_.local, from, bytes(op),
                       op.variant  ? cudaMemcpyDefault
                       : from_host ? cudaMemcpyHostToHost
                                   : cudaMemcpyDeviceToHost);
    }
    case Kind::kHostFunction:
      return cudaLaunchHostFunc(stream(op), &change_on_host, host_argument);
    case Kind::kAllocate:
      return allocate(op);
    case Kind::kNested:
    case Kind::kNestedWithValues:
      return nested_(op, streams_[0]);
    case Kind::kQuery:
      (void)cudaStreamQuery(streams_[0]);
      return cudaSuccess;
    case Kind::kNotUnderCapture:
      return call_library(op);
  }
  return cudaErrorUnknown;
}

// Bytes that depend on `a`; one of them depends on `b`, so relatives often differ in that one alone.
template <class T>
T structure_of(int a, int b) {
  T made;
  auto state = static_cast<unsigned>(a);
  for (unsigned char& byte : made.v) byte = static_cast<unsigned char>((state = state * 1664525 + 1013904223) >> 24);
  made.v[static_cast<unsigned>(b) * 7 % sizeof made.v] ^= static_cast<unsigned char>(b);
  return made;
}

template <class Way, class Nested>
template <class Lead, class T, class U>
cudaError_t Enqueuer<Way, Nested>::take(const Op& op, void (*kernel)(Lead, T, unsigned char, int*), U Source::*slot) {
  return launch(op, kernel, structure_of<Lead>(op.b, op.a),
                way_.template operand<T>(op.has(kSlotWhole), slot, structure_of<T>(op.a, op.b)),
                way_.template operand<unsigned char>(op.has(kSlotB), &Source::b, static_cast<unsigned char>(op.b)),
                out(op));
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::structure(const Op& op) {
  int index = op.structure;
#define GRAPHCACHE_TEST_LAUNCH(name, size, alignment, before, other) \
  if (index-- == 0)                                                  \
    return op.variant ? take(op, take_other_##name, &Source::name) : take(op, take_##name, &Source::name);
  GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_LAUNCH)
#undef GRAPHCACHE_TEST_LAUNCH
  return cudaErrorUnknown;
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::copy(const Op& op) {
  const bool to_slot = is_slot(op, kSlotOut), from_slot = is_slot(op, kSlotIn), any = op.has(kSlotAny);
  cudaMemcpyKind kind = cudaMemcpyDefault;
  if (op.variant && !(any && (to_slot || from_slot))) {
    const bool to_host = !to_slot && is_on_host(op.out), from_host = !from_slot && is_on_host(op.in);
    kind = to_host     ? from_host ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost
           : from_host ? cudaMemcpyHostToDevice
                       : cudaMemcpyDeviceToDevice;
  }
  return way_.copy(stream(op), way_.template operand<void*>(to_slot, any ? &Source::to : &Source::out, place(op.out)),
                   way_.template operand<const void*>(from_slot, any ? &Source::from : &Source::in, place(op.in)),
                   bytes(op), kind);
}

// The temporary is then overwritten, or given back to the system. It is not from the heap, where the device memory of
// hostrt would soon have its address.
template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::copy_from_temporary(const Op& op) {
  constexpr std::size_t kBytes = kWords * sizeof(int);
  const bool is_mapped = op.b % 2 == 0;
  int* const temporary = is_mapped ? map_words() : memory_.scratch();
  for (int i = 0; i < kWords; ++i) temporary[i] = op.a * i + op.b;
  const cudaError_t error =
      op.variant
          ? cudaMemcpyAsync(place(op.out), temporary, kBytes, cudaMemcpyDefault, stream(op))
          : way_.copy(stream(op), out<void*>(op), static_cast<const void*>(temporary), kBytes, cudaMemcpyDefault);
  std::fill_n(temporary, kWords, -1);
  if (is_mapped) unmap_words(temporary);
  return error;
}

// The memory is overwritten when it is released. It is from the heap, so that it has no address that a temporary had:
// a kept address is taken for kept memory wherever it occurs in the graph.
template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::copy_from_kept(const Op& op) {
  constexpr std::size_t kBytes = kWords * sizeof(int);
  int* const words = new int[kWords];
  const std::shared_ptr<void> owner(words, [](void* memory) {
    std::fill_n(static_cast<int*>(memory), kWords, -1);
    delete[] static_cast<int*>(memory);
  });
  for (int i = 0; i < kWords; ++i) words[i] = op.a * i - op.b;
  way_.keep(owner);
  return op.variant ? cudaMemcpyAsync(place(op.out), words, kBytes, cudaMemcpyDefault, stream(op))
                    : way_.copy(stream(op), out<void*>(op), static_cast<const void*>(words), kBytes, cudaMemcpyDefault);
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::cluster(const Op& op) {
  const dim3 pairs(2 * op.grid_x, op.grid_y);
  if (op.kind == Kind::kClusterOf2) {
    return way_.launch(stream(op), cluster_of_2, way_.template operand<dim3>(op.has(kSlotGrid), &Source::pairs, pairs),
                       block(op), shared_bytes(op), out(op), a(op));
  }
  cudaLaunchAttribute attribute = make_attribute(cudaLaunchAttributeClusterDimension);
  attribute.val.clusterDim.x = op.variant ? 2 : 1;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return launch_directly(op, &attribute, cluster_size, pairs, place(op.out), op.a);
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::allocate(const Op& op) {
  constexpr std::size_t kBytes = kWords * sizeof(int);
  void* memory = nullptr;
  cudaError_t error = cudaMallocAsync(&memory, kBytes, stream(op));
  if (error != cudaSuccess) return error;
  int* const words = static_cast<int*>(memory);
  error = cudaMemsetAsync(words, op.b & 255, kBytes, stream(op));
  if (error == cudaSuccess) {
    error = launch_directly(op, nullptr, mix, grid_of(op), words, place(op.in), place(op.in), op.a, op.b);
  }
  if (error == cudaSuccess) error = cudaMemcpyAsync(place(op.out), words, kBytes, cudaMemcpyDefault, stream(op));
  const cudaError_t freed = cudaFreeAsync(memory, stream(op));
  return error != cudaSuccess ? error : freed;
}

template <class Way, class Nested>
cudaError_t Enqueuer<Way, Nested>::call_library(const Op& op) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream(op), &status);
  const bool always = op.always_refuses();
  const bool refuses = status != cudaStreamCaptureStatusNone ? always || library_.refuses : always && library_.fails;
  if (error == cudaSuccess && refuses) error = cudaErrorNotSupported;
  if (error != cudaSuccess) {
    if (status == cudaStreamCaptureStatusNone) order_.join();  // later runs are ordered with the run's stream alone
    if (op.variant) throw error;
    return error;
  }
  return launch_directly(op, nullptr, mix, grid_of(op), place(op.out), place(op.in), place(op.other), op.a, op.b);
}

}  // namespace GRAPHCACHE_TEST_UNIT
}  // namespace graphcache::test::differential
