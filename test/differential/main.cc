// A differential fuzzer of graphcache: random programs are run through a cache on one memory and directly on another,
// and the bytes are compared.
//
//   differential [--seconds S] [--seed N] [--worlds N] [--threads MAX] [--least-threads MIN] [--executables MAX]
//                [--runs N] [--compare-each]
//   differential --world SEED [...]   repeats one world
//
// Each world is a seed, and a test case. It has a cache with random options and one to eight threads, each with
// streams, memory and keys of its own and keys that all threads share. Each wrong world prints a line, and the exit
// status is then 1. It is 3, at once, after an unrecoverable CUDA error, and 77 without a device.
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "memory.h"
#include "world.h"

namespace graphcache::test::differential {
namespace {

struct Arguments {
  double seconds = 10;
  std::uint64_t seed = 1;
  std::uint64_t worlds = UINT64_MAX;
  Limits limits;
};

bool parse(int argc, char** argv, Arguments* arguments) {
  bool counted = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--compare-each") {
      arguments->limits.compare_each = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* const value = argv[++i];
    if (name == "--seconds") {
      arguments->seconds = std::atof(value);
      counted = false;
    } else if (name == "--seed" || name == "--world") {
      arguments->seed = std::strtoull(value, nullptr, 10);
      if (name == "--world") arguments->worlds = 1, counted = true;
    } else if (name == "--worlds") {
      arguments->worlds = std::strtoull(value, nullptr, 10);
      counted = true;
    } else if (name == "--threads") {
      arguments->limits.threads = std::atoi(value);
    } else if (name == "--least-threads") {
      arguments->limits.least_threads = std::atoi(value);
    } else if (name == "--executables") {
      arguments->limits.executables = std::atoi(value);
    } else if (name == "--runs") {
      arguments->limits.runs = std::atoi(value);
    } else {
      return false;
    }
  }
  if (counted) arguments->seconds = 1e9;
  return arguments->limits.threads > 0;
}

void print(const char* title, std::size_t count, const std::uint64_t* counts, const char* (*name)(std::size_t)) {
  std::printf("%s\n", title);
  for (std::size_t i = 0; i < count; ++i) {
    if (counts[i] != 0) std::printf("  %-22s %12llu\n", name(i), static_cast<unsigned long long>(counts[i]));
  }
}

char last_words[512];

void say(const char* text) { [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, std::strlen(text)); }

// Prints the current calls of this thread.
void say_calls(int /*signal*/) {
  std::array<void*, 64> calls{};
  backtrace_symbols_fd(calls.data(), backtrace(calls.data(), static_cast<int>(calls.size())), STDOUT_FILENO);
  say("\n");
}

// Lets each other thread print its calls, one after the other. It allocates, which a signal handler should not; if that
// hangs as well, the next alarm ends the process.
void say_calls_of_other_threads() {
  signal(SIGALRM, SIG_DFL);
  alarm(30);
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* const task = tasks != nullptr ? readdir(tasks) : nullptr) {
    const int thread = std::atoi(task->d_name);
    if (thread == 0 || thread == gettid()) continue;
    tgkill(getpid(), thread, SIGUSR1);
    usleep(100'000);
  }
}

// Prints the seed, the options and the current calls of a world that hangs or crashes.
void say_and_exit(int signal) {
  say(last_words);
  say(signal == SIGALRM ? ": hangs\n" : signal == SIGSEGV ? ": crashes by SIGSEGV\n" : ": crashes\n");
  say_calls(signal);
  if (signal == SIGALRM) say_calls_of_other_threads();
  std::_Exit(3);
}

void watch(const World& world) {
  constexpr unsigned kSeconds = 120;
  std::snprintf(last_words, sizeof last_words, "%s", world.settings.text().c_str());
  for (const int signal : {SIGALRM, SIGABRT, SIGBUS, SIGFPE, SIGSEGV}) ::signal(signal, &say_and_exit);
  signal(SIGUSR1, &say_calls);
  alarm(kSeconds);
}

int run(const Arguments& arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no device\n");
    return 77;
  }
  check(cudaFree(nullptr), "cudaFree");
  std::array<void*, 2> loaded{};
  backtrace(loaded.data(), 2);  // its first call allocates
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Tally tally;
  std::uint64_t passed = 0, failed = 0;
  while (passed + failed < arguments.worlds && seconds() < arguments.seconds) {
    const std::uint64_t seed = arguments.seed + passed + failed;
    World world(seed, arguments.limits);
    watch(world);
    const std::string fault = world.run(&tally);
    ++(fault.empty() ? passed : failed);
    if (!fault.empty()) std::printf("%s: %s\n", world.settings.text().c_str(), fault.c_str());
    std::fflush(stdout);
  }
  alarm(0);
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("%llu worlds from seed %llu, %llu runs in %.1f s, %llu of them failed as directly\n",
              number(passed + failed), number(arguments.seed), number(tally.runs), seconds(), number(tally.alike));
  std::printf("%llu runs on a per-thread stream 0, %llu runs of steps\n", number(tally.per_thread),
              number(tally.steps));
  print("outcomes", tally.outcomes.size(), tally.outcomes.data(),
        [](std::size_t i) { return to_string(static_cast<Outcome>(i)); });
  print("eager runs, by reason", tally.eager_reasons.size(), tally.eager_reasons.data(),
        [](std::size_t i) { return to_string(static_cast<EagerReason>(i)); });
  print("the caches' work", tally.changes.size(), tally.changes.data(), [](std::size_t i) { return kChangeNames[i]; });
  print("operations of programs", tally.kinds.size(), tally.kinds.data(), [](std::size_t i) { return kKindNames[i]; });
  std::printf("%llu passed, %llu failed, 0 skipped\n", number(passed), number(failed));
  return failed != 0;
}

}  // namespace
}  // namespace graphcache::test::differential

int main(int argc, char** argv) {
  using namespace graphcache::test::differential;
  Arguments arguments;
  if (!parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: differential [--seconds S] [--seed N] [--worlds N] [--world SEED] [--threads MAX] "
                 "[--least-threads MIN] [--executables MAX] [--runs N] [--compare-each]\n");
    return 2;
  }
  return run(arguments);
}
