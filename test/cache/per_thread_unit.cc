// GRAPHCACHE_TEST_UNIT is the name of the unit. The types of `fn` are the same in both compilations where that is
// possible, so that the linker keeps one of each of the library's inline functions.
#include <functional>

#include "kernels.h"
#include "per_thread.h"

namespace graphcache::test {
namespace {

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool kIsPerThread = true;
#else
constexpr bool kIsPerThread = false;
#endif

thread_local cudaStream_t seen_stream = nullptr;
thread_local float* target = nullptr;
thread_local float added = 0;

cudaError_t add_on(cudaStream_t stream, float* data, float value) {
  seen_stream = stream;
  int size = 100;
  void* arguments[] = {&data, &size, &value};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&add), 2, 64, arguments, 0, stream);
}
cudaError_t add_to_target(cudaStream_t stream) { return add_on(stream, target, added); }

absl::StatusOr<Outcome> run(Way way, Cache& cache, float* data, float value, cudaStream_t* seen) {
  target = data;
  added = value;
  const Key name = key("per_thread", kIsPerThread, way, data, static_cast<int>(value));
  const auto outcome = [&]() -> absl::StatusOr<Outcome> {
    switch (way) {
      case Way::kFunction:
        return cache.run(name, 0, &add_to_target);
      case Way::kSlot:
        return cache.run(key("slot", kIsPerThread, data), 0, params(value), [&](Recorder& rec, Slot<float> slot) {
          seen_stream = rec.stream();
          rec.launch(add, {2, 64}, data, 100, slot);
        });
      case Way::kStep: {
        auto step = cache.prepare(name, std::function<cudaError_t(cudaStream_t)>(&add_to_target));
        return step.run(nullptr);
      }
      case Way::kStepByDefault: {
        Options options;
        options.stream = nullptr;
        Cache other(options);
        auto step = other.prepare(name, std::function<cudaError_t(cudaStream_t)>(&add_to_target));
        return step.run();
      }
      case Way::kOptions: {
        Options options;
        options.stream = nullptr;
        Cache other(options);
        return other.run(name, &add_to_target);
      }
      case Way::kWarmed: {
        const absl::Status warmed = cache.warm(name, nullptr, &add_to_target);
        if (!warmed.ok()) return warmed;
        return cache.run(name, nullptr, &add_to_target);
      }
      case Way::kForked:
        return cache.run(name, 0, [&](Recorder& rec) {
          seen_stream = rec.stream();
          rec.on(rec.stream()).launch(add, {2, 64}, data, 100, value);
        });
      case Way::kDirect: {
        Options options;
        options.max_executables = 0;
        Cache none(options);
        return none.run(name, 0, &add_to_target);
      }
      default:
        return cache.run(name, 0, [&](cudaStream_t stream) { return add_on(stream, data, value); });
    }
  }();
  *seen = seen_stream;
  return outcome;
}

Options options_of_stream_zero() {
  Options options;
  options.stream = nullptr;
  return options;
}
absl::StatusOr<Outcome> run_by_default(Cache& cache, float* data, float value, cudaStream_t* seen) {
  target = data;
  added = value;
  const auto outcome = cache.run(key("by default", kIsPerThread, data, static_cast<int>(value)), &add_to_target);
  *seen = seen_stream;
  return outcome;
}

cudaError_t read(float* to, const float* from, std::size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, 0);
}
cudaError_t call(void (*function)(void*), void* data) { return cudaLaunchHostFunc(0, function, data); }
cudaError_t wait() { return cudaStreamSynchronize(0); }

}  // namespace

const Unit GRAPHCACHE_TEST_UNIT = {kIsPerThread, &run, &options_of_stream_zero, &run_by_default, &read, &call, &wait};

}  // namespace graphcache::test
