// cuRAND: numbers of a kernel whose offset is a slot, and what a replay of a generator gives.
#include <curand.h>
#include <curand_kernel.h>

#include <set>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kCount = 4096;
constexpr unsigned kThreads = 128;

// numbers[i] is the number at `offset` of the i-th sequence of `seed`.
__global__ void uniform(float* numbers, int count, unsigned long long seed, unsigned long long offset) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, static_cast<unsigned long long>(i), offset, &state);
  numbers[i] = curand_uniform(&state);
}

// The program counts the offset, and each run passes it.
absl::StatusOr<graphcache::Outcome> draw(graphcache::Cache& cache, cudaStream_t stream, float* numbers,
                                         unsigned long long seed, unsigned long long offset) {
  return cache.run(graphcache::key("draw", kCount), stream, graphcache::params(seed, offset),
                   [&](graphcache::Recorder& rec, graphcache::Slot<unsigned long long> seed_slot,
                       graphcache::Slot<unsigned long long> offset_slot) {
                     rec.launch(uniform, {kCount / kThreads, kThreads}, numbers, kCount, seed_slot, offset_slot);
                   });
}

bool check_draw(graphcache::Cache& cache, cudaStream_t stream) {
  const Array<float> numbers(kCount), reference(kCount);
  std::set<std::vector<float>> drawn;
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    const unsigned long long seed = i < kRuns / 2 ? 1234 : 5678, offset = 4 * (i / 2 * 2);
    right &= succeeded(draw(cache, stream, numbers.get(), seed, offset));
    uniform<<<kCount / kThreads, kThreads, 0, stream>>>(reference.get(), kCount, seed, offset);
    right &= numbers.on_host(stream) == reference.on_host(stream);
    drawn.insert(numbers.on_host(stream));
  }
  return right && drawn.size() == kRuns / 2 + 1;
}

// The host API. Where the generator's state lies in device memory, a replay goes on where the last run ended.
struct Generator {
  explicit Generator(curandRngType_t type) {
    DEMO_LIBRARY(curandCreateGenerator(&handle, type));
    DEMO_LIBRARY(curandSetPseudoRandomGeneratorSeed(handle, 1234));
    DEMO_LIBRARY(curandGenerateSeeds(handle));  // Else the first call makes the state, which allocates.
  }
  ~Generator() { DEMO_LIBRARY(curandDestroyGenerator(handle)); }
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  curandGenerator_t handle = nullptr;
};

absl::StatusOr<graphcache::Outcome> generate(graphcache::Cache& cache, cudaStream_t stream, const Generator& generator,
                                             float* numbers) {
  return cache.run(graphcache::key("generate", kCount), stream, [&](cudaStream_t recorded) {
    DEMO_TRY(curandSetStream(generator.handle, recorded));
    DEMO_TRY(curandGenerateUniform(generator.handle, numbers, kCount));
    return absl::OkStatus();
  });
}

// Whether the runs give what a generator gives that is called directly as often.
template <curandRngType_t kType>
bool check_generator(graphcache::Cache& cache, cudaStream_t stream) {
  const Generator generator(kType), reference(kType);
  const Array<float> numbers(kCount), wanted(kCount);
  std::set<std::vector<float>> drawn;
  int equal = 0;
  for (int i = 0; i < kRuns; ++i) {
    const bool ran = succeeded(generate(cache, stream, generator, numbers.get()));
    DEMO_LIBRARY(curandSetStream(reference.handle, stream));
    DEMO_LIBRARY(curandGenerateUniform(reference.handle, wanted.get(), kCount));
    equal += ran && numbers.on_host(stream) == wanted.on_host(stream) ? 1 : 0;
    drawn.insert(numbers.on_host(stream));
  }
  if (equal != kRuns) std::printf("  %zu different of %d runs, %d as direct ones\n", drawn.size(), kRuns, equal);
  return equal == kRuns;
}

[[maybe_unused]] const bool added =
    add_recipe({"curand, offset as a slot", 1, check_draw}) &&
    add_recipe({"curand, generator XORWOW", 1, check_generator<CURAND_RNG_PSEUDO_XORWOW>}) &&
    add_recipe({"curand, generator MRG32k3a", 1, check_generator<CURAND_RNG_PSEUDO_MRG32K3A>}) &&
    add_recipe({"curand, generator MTGP32", 1, check_generator<CURAND_RNG_PSEUDO_MTGP32>}) &&
    add_recipe({"curand, generator MT19937", 1, check_generator<CURAND_RNG_PSEUDO_MT19937>}) &&
    add_recipe({"curand, generator Philox", 1, check_generator<CURAND_RNG_PSEUDO_PHILOX4_32_10>});

}  // namespace
}  // namespace demo
