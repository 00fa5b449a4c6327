// Random calls of the CUDA runtime, on hostrt (calls) and on a GPU (calls_gpu). Both write a log of what the calls
// returned; test/calls/compare says where two logs differ. Either hostrt is wrong there, or the program is.
//
//   calls [--seed N] [--worlds N] >LOG
//
// A world is a seed, and has streams, events, graphs and executables of its own. A driver may crash by wrong calls, so
// a process makes the calls of few worlds, and the next one continues behind a crash. The exit status is 1 after a
// crash or a misuse that hostrt reports, and 77 without a device.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "world.h"
#ifndef GRAPHCACHE_TEST_CUDA
#include "graphcache/hostrt.h"
#endif

namespace graphcache::test::calls {
namespace {

using Number = unsigned long long;

constexpr int kWrong = 1, kSkipped = 77;
constexpr Number kWorldsOfProcess = 500;
constexpr unsigned kSecondsOfWorld = 60;

void begin_world() {
#ifndef GRAPHCACHE_TEST_CUDA
  hostrt::reset();
#endif
}

bool misused() {
#ifndef GRAPHCACHE_TEST_CUDA
  if (hostrt::misuses() != 0) return std::fprintf(stderr, "a misuse: %s\n", hostrt::last_misuse().c_str()), true;
#endif
  return false;
}

// Runs the worlds from *world on, in a child process. *world is then the next one.
int run_some(std::atomic<Number>* world, Number end) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return kSkipped;
  int status = 0;
  for (bool intact = true; intact && *world < end; ++*world) {
    alarm(kSecondsOfWorld);
    begin_world();
    intact = run_world(*world);
    if (misused()) status = kWrong;
  }
  return status;
}

int run(Number seed, Number worlds) {
  void* const shared = mmap(nullptr, sizeof(Number), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return kWrong;
  auto* const world = new (shared) std::atomic<Number>(seed);
  int result = 0;
  while (*world < seed + worlds) {
    const pid_t child = fork();
    if (child == 0) _exit(run_some(world, std::min(*world + kWorldsOfProcess, seed + worlds)));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return kWrong;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) return std::printf("skipped: no device\n"), kSkipped;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = kWrong;
    if (!WIFSIGNALED(status)) continue;
    std::printf("\nworld %llu crashed, signal %d\n", (*world)++, WTERMSIG(status));
  }
  return result;
}

}  // namespace
}  // namespace graphcache::test::calls

int main(int argc, char** argv) {
  unsigned long long seed = 1, worlds = 1000;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc || (name != "--seed" && name != "--worlds")) {
      return std::fprintf(stderr, "usage: %s [--seed N] [--worlds N] >LOG\n", argv[0]), 2;
    }
    (name == "--seed" ? seed : worlds) = std::strtoull(argv[i + 1], nullptr, 10);
  }
  // The last words before a crash are of use.
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  return graphcache::test::calls::run(seed, worlds);
}
