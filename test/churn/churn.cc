// Random runs while memory comes and goes. Threads share a cache, and each has a stream and buffers of its own. Between
// two runs a buffer may be freed and made anew, of any kind of memory and often at its old address. All bytes are
// compared with a model.
//
//   churn [--seed N] [--worlds N] [--seconds S]
//
// A world is a seed. A driver may crash by a wrong copy, so worlds run in a process of their own, and the next process
// continues behind a crash. The exit status is 1 after a crash, a difference or a misuse that hostrt reports, and 77
// without a device.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#ifndef GRAPHCACHE_TEST_CUDA
#include "graphcache/hostrt.h"
#endif

namespace graphcache::test::churn {
namespace {

using Number = unsigned long long;

enum class Memory { kDevice, kPool, kManaged, kPinned, kRegistered, kPageable, kOtherDevice };
constexpr int kKinds = 7;
bool is_on_host(Memory of) { return of >= Memory::kPinned && of <= Memory::kPageable; }
// Whether kernels and sets of the device may use it.
bool is_of_device(Memory of) { return of < Memory::kPageable; }

constexpr int kBuffers = 6;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  _exit(1);
}
void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorName(error));
}

struct Buffer {
  Memory kind = Memory::kDevice;
  int* at = nullptr;
};

// Notes the kind of memory at an address. Returns whether it was a device's before, and another's, or the host's, now.
bool note(const Buffer& buffer) {
  static std::mutex mutex;
  static auto& kinds = *new std::map<const void*, Memory>;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = kinds.emplace(buffer.at, buffer.kind);
  const Memory before = std::exchange(at->second, buffer.kind), now = buffer.kind;
  return !is_new && !is_on_host(before) &&
         (is_on_host(now) || (before == Memory::kOtherDevice) != (now == Memory::kOtherDevice));
}

Buffer allocate(Memory kind, std::size_t bytes, cudaStream_t stream) {
  constexpr std::size_t kPage = 4096;
  void* at = nullptr;
  switch (kind) {
    case Memory::kDevice:
      must(cudaMalloc(&at, bytes), "cudaMalloc");
      break;
    case Memory::kPool:
      must(cudaMallocAsync(&at, bytes, stream), "cudaMallocAsync");
      break;
    case Memory::kManaged:
      must(cudaMallocManaged(&at, bytes, cudaMemAttachGlobal), "cudaMallocManaged");
      break;
    case Memory::kPinned:
      must(cudaMallocHost(&at, bytes), "cudaMallocHost");
      break;
    case Memory::kOtherDevice:
      must(cudaSetDevice(1), "cudaSetDevice");
      must(cudaMalloc(&at, bytes), "cudaMalloc");
      must(cudaSetDevice(0), "cudaSetDevice");
      break;
    default:
      at = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
      if (kind == Memory::kRegistered) must(cudaHostRegister(at, bytes, cudaHostRegisterDefault), "cudaHostRegister");
  }
  return {kind, static_cast<int*>(at)};
}

void free(const Buffer& buffer, cudaStream_t stream) {
  must(cudaStreamSynchronize(stream), "the work of a run");
  switch (buffer.kind) {
    case Memory::kPool:
      return must(cudaFreeAsync(buffer.at, stream), "cudaFreeAsync");
    case Memory::kPinned:
      return must(cudaFreeHost(buffer.at), "cudaFreeHost");
    case Memory::kRegistered:
      must(cudaHostUnregister(buffer.at), "cudaHostUnregister");
      [[fallthrough]];
    case Memory::kPageable:
      return std::free(buffer.at);
    default:
      must(cudaFree(buffer.at), "cudaFree");
  }
}

// How a key's work gets its pointers.
enum class Way { kSlots, kValues, kConstants };

struct Op {
  enum class Type { kCopy, kRows, kSet, kBlend };
  Type type;
  int to, from;
  int number;
  bool is_explicit;      // Whether a copy says its kind,
  bool managed_as_host;  // and what managed memory is then.
};

struct Program {
  Way way;
  std::vector<Op> ops;
};

cudaMemcpyKind kind_of(const Op& op, Memory to, Memory from) {
  if (!op.is_explicit) return cudaMemcpyDefault;
  const auto is_host = [&](Memory of) { return is_on_host(of) || (of == Memory::kManaged && op.managed_as_host); };
  if (is_host(to)) return is_host(from) ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost;
  return is_host(from) ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice;
}

// A world, which its threads share.
struct World {
  explicit World(Number seed) : random(seed) {
    must(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
#ifdef GRAPHCACHE_TEST_CUDA
    constexpr std::array<std::size_t, 3> kSizes = {16, 1024, 1 << 19};
#else
    constexpr std::array<std::size_t, 2> kSizes = {16, 1024};
#endif
    words = kSizes[below(kSizes.size())];
    lanes = 1 + below(3);
    constexpr std::array<std::size_t, 4> kSeldom = {2, 5, 20, 100};
    freed_one_in = kSeldom[below(kSeldom.size())];
    const std::size_t all_kinds = devices > 1 ? kKinds : kKinds - 1;
    for (std::size_t i = 1 + below(3); i > 0; --i) kinds.push_back(static_cast<Memory>(below(all_kinds)));
    for (std::size_t i = 3 + below(4); i > 0; --i) {
      Program& program = programs.emplace_back(Program{static_cast<Way>(below(3)), {}});
      for (std::size_t k = 1 + below(5); k > 0; --k) {
        const auto to = static_cast<int>(below(kBuffers));
        const auto from = static_cast<int>((static_cast<std::size_t>(to) + 1 + below(kBuffers - 1)) % kBuffers);
        program.ops.push_back({static_cast<Op::Type>(below(4)), to, from, static_cast<int>(1 + below(200)),
                               below(2) == 0, below(2) == 0});
      }
    }
    Options options;
    options.device = 0;
    options.max_executables = static_cast<int>(1 + below(6));
    options.share = static_cast<Share>(below(3));
    options.capture_mode = cudaStreamCaptureModeThreadLocal;  // Other threads allocate.
    if (below(4) == 0) options.max_templates = 2;
    cache.emplace(options);
  }
  std::size_t below(std::size_t n) { return random() % n; }

  std::mt19937_64 random;
  int devices = 0;
  std::size_t words = 0, lanes = 0;
  std::size_t freed_one_in = 0;  // How often a buffer is made anew before a run,
  std::vector<Memory> kinds;     // of one of these kinds.
  std::vector<Program> programs;
  std::optional<Cache> cache;
};

class Lane {
 public:
  Lane(World& world, Number seed) : world_(world), random_(seed) {
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (std::size_t i = 0; i < kBuffers; ++i) {
      model_[i].assign(world_.words, static_cast<int>(seed + 1000 * i));
      make(i);
    }
  }
  ~Lane() {
    for (const Buffer& buffer : buffers_) free(buffer, stream_);
    must(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  void run_one() {
    for (std::size_t i = 0; i < kBuffers; ++i) {
      if (below(world_.freed_one_in) != 0) continue;
      free(buffers_[i], stream_);
      make(i);
    }
    if (below(3) == 0) {  // What changes its place keeps its memory.
      const std::size_t a = below(kBuffers), b = below(kBuffers);
      std::swap(buffers_[a], buffers_[b]);
      std::swap(model_[a], model_[b]);
    }
    const std::size_t number = below(world_.programs.size());
    const Program& program = world_.programs[number];
    // What these kinds of memory allow decides about the work, so it is part of the key.
    Work work;
    std::string what;
    for (const Op& op : program.ops) {
      const Memory to = buffers_[static_cast<std::size_t>(op.to)].kind;
      const Memory from = buffers_[static_cast<std::size_t>(op.from)].kind;
      const bool is_copy = op.type == Op::Type::kCopy || op.type == Op::Type::kRows;
      const cudaMemcpyKind kind = kind_of(op, to, from);
      if (is_copy || (is_of_device(to) && (op.type == Op::Type::kSet || is_of_device(from)))) {
        work.emplace_back(op, kind);
        what += static_cast<char>('a' + static_cast<int>(kind));
      } else {
        what += '-';
      }
    }
    run(number, what, work, std::make_index_sequence<kBuffers>());
    for (const auto& [op, kind] : work) apply(op);
    if (below(3) == 0) compare();
  }

  void compare() {
    std::vector<int> bytes(world_.words);
    for (std::size_t i = 0; i < kBuffers; ++i) {
      copy(bytes.data(), buffers_[i].at);
      if (bytes != model_[i]) fail("buffer " + std::to_string(i) + " is wrong");
    }
  }

 private:
  using Work = std::vector<std::pair<Op, cudaMemcpyKind>>;

  std::size_t below(std::size_t n) { return random_() % n; }
  std::size_t size() const { return world_.words * sizeof(int); }

  void copy(int* to, const int* from) {
    must(cudaMemcpyAsync(to, from, size(), cudaMemcpyDefault, stream_), "a copy");
    must(cudaStreamSynchronize(stream_), "the work of a run");
  }

  void make(std::size_t i) {
    Buffer& buffer = buffers_[i];
    buffer = allocate(world_.kinds[below(world_.kinds.size())], size(), stream_);
    // Where another allocator gives out an address of a device's, the keys must go (docs/guide/mistakes.md).
    if (note(buffer)) world_.cache->erase_if([](const Key&) { return true; });
    copy(buffer.at, model_[i].data());
  }

  // Enqueues the work. The pointers are those of the buffers, or slots of them.
  template <class Pointers>
  void enqueue(Recorder& rec, const Work& work, const Pointers& pointers) {
    const int n = static_cast<int>(world_.words);
    constexpr unsigned kThreads = 32;
    const unsigned blocks = (static_cast<unsigned>(world_.words) + kThreads - 1) / kThreads;
    for (const auto& [op, kind] : work) {
      const auto to = pointers[static_cast<std::size_t>(op.to)], from = pointers[static_cast<std::size_t>(op.from)];
      switch (op.type) {
        case Op::Type::kRows:  // Not by slots.
          if constexpr (std::is_pointer_v<std::remove_const_t<decltype(to)>>) {
            const std::size_t width = size() / 4;
            (void)cudaMemcpy2DAsync(to, width, from, width, width, 4, kind, rec.stream());
            break;
          }
          [[fallthrough]];
        case Op::Type::kCopy:
          rec.memcpy(to, from, size(), kind);
          break;
        case Op::Type::kSet:
          rec.memset(to, op.number, size());
          break;
        case Op::Type::kBlend:
          rec.launch(blend_in, {blocks, kThreads}, to, from, n, op.number);
      }
    }
  }

  template <std::size_t... I>
  void run(std::size_t number, const std::string& what, const Work& work, std::index_sequence<I...>) {
    const Way way = world_.programs[number].way;
    const Key of = way == Way::kConstants ? key(number, what, buffers_[I].at...) : key(number, what);
    Cache& cache = *world_.cache;
    const auto pointers = [](auto... at) { return std::array{at...}; };
    absl::StatusOr<Outcome> outcome;
    if (way == Way::kSlots) {
      outcome = cache.run(of, stream_, params(buffers_[I].at...),
                          [&](Recorder& rec, SlotOf<I>... at) { enqueue(rec, work, pointers(at...)); });
    } else if (way == Way::kValues) {
      outcome = cache.run(of, stream_, values(buffers_[I].at...),
                          [&](Recorder& rec, PointerOf<I>... at) { enqueue(rec, work, pointers(at...)); });
    } else {
      outcome = cache.run(of, stream_, [&](Recorder& rec) { enqueue(rec, work, pointers(buffers_[I].at...)); });
    }
    if (!outcome.ok()) fail(std::string(outcome.status().message()));
  }
  template <std::size_t>
  using PointerOf = int*;
  template <std::size_t>
  using SlotOf = Slot<int*>;

  void apply(const Op& op) {
    std::vector<int>& to = model_[static_cast<std::size_t>(op.to)];
    const std::vector<int>& from = model_[static_cast<std::size_t>(op.from)];
    switch (op.type) {
      case Op::Type::kSet:
        std::memset(to.data(), op.number, size());
        break;
      case Op::Type::kBlend:
        for (std::size_t i = 0; i < to.size(); ++i) {
          to[i] = static_cast<int>(static_cast<unsigned>(op.number) * static_cast<unsigned>(to[i]) +
                                   static_cast<unsigned>(from[i]));
        }
        break;
      default:
        to = from;
    }
  }

  World& world_;
  std::mt19937_64 random_;
  cudaStream_t stream_ = nullptr;
  std::array<Buffer, kBuffers> buffers_;
  std::array<std::vector<int>, kBuffers> model_;
};

void run_world(Number seed) {
  constexpr int kRuns = 60;
#ifndef GRAPHCACHE_TEST_CUDA
  hostrt::reset();
  hostrt::set_device_count(1 + static_cast<int>(seed % 2));
#endif
  World world(seed);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world.lanes; ++i) {
    threads.emplace_back([&world, of_lane = seed * 8 + i] {
      Lane lane(world, of_lane);
      for (int run = 0; run < kRuns; ++run) lane.run_one();
      lane.compare();
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.cache.reset();
#ifndef GRAPHCACHE_TEST_CUDA
  if (hostrt::misuses() != 0) fail("a misuse: " + hostrt::last_misuse());
#endif
}

}  // namespace
}  // namespace graphcache::test::churn

int main(int argc, char** argv) {
  using graphcache::test::churn::Number;
  Number seed = 1, worlds = ~Number{0}, seconds = 10;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    Number* const to = name == "--seed"      ? &seed
                       : name == "--worlds"  ? &worlds
                       : name == "--seconds" ? &seconds
                                             : nullptr;
    if (i + 1 == argc || to == nullptr) {
      return std::fprintf(stderr, "usage: %s [--seed N] [--worlds N] [--seconds S]\n", argv[0]), 2;
    }
    *to = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= end; };
  // The world that a process has begun.
  auto* const world = static_cast<std::atomic<Number>*>(
      mmap(nullptr, sizeof(std::atomic<Number>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int passed = 0, failed = 0;
  for (*world = seed; *world - seed < worlds && !is_over();) {
    const Number first = *world;
    const pid_t child = fork();
    if (child == 0) {
      int devices = 0;
      if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) _exit(77);
      for (; *world - seed < worlds && !is_over(); ++*world) graphcache::test::churn::run_world(*world);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return std::puts("skipped: no device"), 77;
    passed += static_cast<int>(*world - first);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    ++failed;
    std::printf("world %llu: %s %d\n", static_cast<Number>((*world)++), WIFSIGNALED(status) ? "signal" : "exit status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
