// Calls of a cache with values of many types, for values_random_test.cc: from the values that the test has chosen to
// values(), and back in `fn`.
#pragma once

#include <absl/types/span.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <any>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "values_random_program.h"

namespace graphcache::test::values_random {

struct Work {
  cudaError_t enqueue(cudaStream_t stream, absl::Span<const Passed> values) {
    // The next call is direct.
    if (std::exchange(fails_under_capture, false) && is_capturing(stream)) return cudaErrorInvalidValue;
    return program.enqueue(stream, forked, *memory, values);
  }
  Program program;
  const Memory* memory;
  cudaStream_t forked;
  bool fails_under_capture = false;
};

enum class Way { kRun, kStep, kWarm };
struct Request {
  Cache* cache;
  Key key;
  cudaStream_t stream;
  Work* work;
  absl::Span<const Passed> values;
  bool takes_recorder;
  Way way;
  std::any* step;
};

template <class T>
T typed(const Passed& value) {
  if constexpr (std::is_pointer_v<T>) {
    return value.pointer;
  } else if constexpr (detail::kIsHalf<T>) {
    return T(static_cast<float>(value.number));
  } else {
    return static_cast<T>(value.number);
  }
}
template <class T>
Passed passed(const T& value) {
  Passed all;
  if constexpr (std::is_pointer_v<T>) {
    all.pointer = static_cast<unsigned*>(const_cast<void*>(static_cast<const void*>(value)));
  } else {
    if constexpr (detail::kIsHalf<T>) std::memcpy(&all.half, &value, sizeof all.half);
    all.number = static_cast<std::conditional_t<detail::kIsHalf<T>, float, T>>(value);
  }
  return all;
}

template <class T>
inline constexpr Type kTypeOf = std::is_pointer_v<T>        ? Type::kPointer
                                : std::is_same_v<T, float>  ? Type::kFloat
                                : std::is_same_v<T, double> ? Type::kDouble
                                : std::is_same_v<T, __half> ? Type::kHalf
                                                            : Type::kBfloat16;

// Runs with values of these types.
template <class... Ts>
struct Call {
  struct OnStream {
    Work* work;
    cudaError_t operator()(cudaStream_t stream, Ts... values) const {
      return work->enqueue(stream, {passed(values)...});
    }
  };
  struct OnRecorder {
    Work* work;
    cudaError_t operator()(Recorder& rec, Ts... values) const {
      return work->enqueue(rec.stream(), {passed(values)...});
    }
  };

  // The values as `fn` will get them.
  static std::vector<Passed> pass(absl::Span<const Passed> values) {
    return pass(values, std::index_sequence_for<Ts...>());
  }
  static absl::StatusOr<Outcome> make(const Request& request) {
    return request.takes_recorder ? make(request, OnRecorder{request.work}, std::index_sequence_for<Ts...>())
                                  : make(request, OnStream{request.work}, std::index_sequence_for<Ts...>());
  }

 private:
  template <std::size_t... I>
  static std::vector<Passed> pass(absl::Span<const Passed> values, std::index_sequence<I...>) {
    return {passed(typed<Ts>(values[I]))...};
  }
  template <class Fn, std::size_t... I>
  static absl::StatusOr<Outcome> make(const Request& request, Fn fn, std::index_sequence<I...>) {
    const Values<Ts...> given = values(typed<Ts>(request.values[I])...);
    Cache& cache = *request.cache;
    if (request.way == Way::kWarm) {
      const absl::Status status = cache.warm(request.key, request.stream, given, fn);
      if (!status.ok()) return status;
    } else if (request.way == Way::kStep) {
      if (!request.step->has_value()) *request.step = cache.prepare(request.key, fn);
      return std::any_cast<Step<Fn>&>(*request.step).run(request.stream, given);
    }
    return cache.run(request.key, request.stream, given, fn);
  }
};

struct Signature {
  std::vector<Type> types;
  absl::StatusOr<Outcome> (*make)(const Request&);
  std::vector<Passed> (*pass)(absl::Span<const Passed>);
};
template <class... Ts>
Signature signature() {
  return {{kTypeOf<Ts>...}, &Call<Ts...>::make, &Call<Ts...>::pass};
}
using P = unsigned*;
using Q = const void*;
inline const Signature kSignatures[] = {
    signature<float>(),
    signature<P>(),
    signature<P, Q>(),
    signature<float, P>(),
    signature<double, float, const unsigned*>(),
    signature<__half, P, P>(),
    signature<P, P, Q, float>(),
    signature<float, float, double, double, __half>(),
    signature<__nv_bfloat16, double, P, float, Q>(),
    signature<float, P, __half, double, Q, P>(),
};

}  // namespace graphcache::test::values_random
