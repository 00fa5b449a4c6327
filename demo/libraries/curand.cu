// cuRAND: random numbers from a kernel whose offset is a slot, and the results of replaying a generator.
#include <curand.h>
#include <curand_kernel.h>

#include <set>
#include <utility>

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

// The host API, which does not suit graphs: a generator counts its draws on the host.
struct Generator {
  explicit Generator(curandRngType_t type) {
    DEMO_LIBRARY(curandCreateGenerator(&handle, type));
    DEMO_LIBRARY(curandSetPseudoRandomGeneratorSeed(handle, 1234));
    DEMO_LIBRARY(curandGenerateSeeds(handle));  // otherwise the first call creates the state, which allocates
  }
  ~Generator() { DEMO_LIBRARY(curandDestroyGenerator(handle)); }
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  curandGenerator_t handle = nullptr;
};

struct Found {
  std::size_t different;  // number of different results among the runs
  int as_direct;          // number of runs with the results of a generator that is called directly as often
};

Found replay_generator(graphcache::Cache& cache, cudaStream_t stream, curandRngType_t type, std::size_t count) {
  const Generator generator(type), reference(type);
  const Array<float> numbers(count), wanted(count);
  std::set<std::vector<float>> drawn;
  Found found{};
  for (int i = 0; i < kRuns; ++i) {
    const auto outcome =
        cache.run(graphcache::key("generate", static_cast<int>(type), count), stream, [&](cudaStream_t recorded) {
          DEMO_TRY(curandSetStream(generator.handle, recorded));
          DEMO_TRY(curandGenerateUniform(generator.handle, numbers.get(), count));
          return absl::OkStatus();
        });
    DEMO_LIBRARY(curandSetStream(reference.handle, stream));
    DEMO_LIBRARY(curandGenerateUniform(reference.handle, wanted.get(), count));
    if (succeeded(outcome) && numbers.on_host(stream) == wanted.on_host(stream)) ++found.as_direct;
    drawn.insert(numbers.on_host(stream));
  }
  found.different = drawn.size();
  return found;
}

// The case that docs/libraries.md warns of. The direct run and the captured one draw the right numbers; replays do not.
bool check_generators(graphcache::Cache& cache, cudaStream_t stream) {
  const std::pair<const char*, curandRngType_t> types[] = {{"XORWOW", CURAND_RNG_PSEUDO_XORWOW},
                                                           {"MRG32k3a", CURAND_RNG_PSEUDO_MRG32K3A},
                                                           {"MTGP32", CURAND_RNG_PSEUDO_MTGP32},
                                                           {"MT19937", CURAND_RNG_PSEUDO_MT19937},
                                                           {"Philox", CURAND_RNG_PSEUDO_PHILOX4_32_10}};
  bool as_warned = true;
  for (const auto& [name, type] : types) {
    const Found few = replay_generator(cache, stream, type, 1000), more = replay_generator(cache, stream, type, 4096);
    as_warned &= few.as_direct >= 2 && few.as_direct < kRuns && more.as_direct >= 2;
    std::printf("  %-10s runs as direct ones, and different ones, of %d: %d, %zu (1000 numbers); %d, %zu (4096)\n",
                name, kRuns, few.as_direct, few.different, more.as_direct, more.different);
  }
  return as_warned;
}

[[maybe_unused]] const bool added = add_recipe({"curand, offset as a slot", 1, check_draw}) &&
                                    add_recipe({"curand, generators cannot", 10, check_generators});

}  // namespace
}  // namespace demo
