// Caches and fork(). CUDA works in a child process only if its parent had not used CUDA. So each scenario runs in a
// process of its own: this program, started again, which runs the scenario before its main() uses CUDA.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "graphcache/graphcache.h"

extern char** environ;

void before_cuda();  // Called by gtest_main.cc.

namespace graphcache {
namespace {

constexpr char kVariable[] = "GRAPHCACHE_FORK_SCENARIO";

// In a scenario, a failed expectation ends the process with the line's number.
#define REQUIRE(condition)                                         \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      _exit(1);                                                    \
    }                                                              \
  } while (false)

// Memory of the device, a stream, and work that fills the memory with a byte.
struct Work {
  Work() {
    REQUIRE(cudaMalloc(&memory, 4) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  absl::StatusOr<Outcome> run(Cache& cache, int byte) {
    return cache.run(key("fill", byte), stream, [&](cudaStream_t s) { return cudaMemsetAsync(memory, byte, 4, s); });
  }
  unsigned read() {
    unsigned word = 0;
    REQUIRE(cudaMemcpyAsync(&word, memory, 4, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return word;
  }
  void expect_all_works(Cache& cache) {
    for (const Outcome wanted : {Outcome::kInstantiated, Outcome::kReplayed}) {
      for (const int byte : {1, 2}) {
        const auto outcome = run(cache, byte);
        REQUIRE(outcome.ok() && *outcome == wanted);
        REQUIRE(read() == 0x01010101u * static_cast<unsigned>(byte));
      }
    }
    REQUIRE(cache.status().ok() && cache.options().device == 0);
  }

  void* memory = nullptr;
  cudaStream_t stream = nullptr;
};

// Runs f() in a child, which then ends as a program does: caches and static objects are destroyed.
template <class F>
void in_child(const F& f) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    f();
    std::exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

bool says_why(const absl::Status& status) {
  return cuda_error(status) == cudaErrorInitializationError &&
         std::string_view(status.message().data(), status.message().size()).find("forked") != std::string_view::npos;
}

void made_before_fork() {
  auto cache = std::make_unique<Cache>();
  auto warmed = std::make_unique<Cache>();
  REQUIRE(cache->stats().runs() == 0 && cache->entries().empty() && !cache->contains(key("fill", 1)));
  REQUIRE(!cache->erase(key("fill", 1)) && !cache->pin(key("fill", 1)));
  cache->clear();
  REQUIRE(cache->status().ok() && cache->options().device == Options::kCurrentDevice);
  for (int i = 0; i < 2; ++i) {
    in_child([&] {
      Work work;
      work.expect_all_works(*cache);
      REQUIRE(
          warmed
              ->warm(key("fill", 1), work.stream, [&](cudaStream_t s) { return cudaMemsetAsync(work.memory, 1, 4, s); })
              .ok());
      cache = nullptr;
    });
  }
  // The parent has not used CUDA until now.
  Work work;
  work.expect_all_works(*cache);
}

void used_before_fork() {
  static Cache of_parent;
  auto fresh = std::make_unique<Cache>();
  static Work work;
  work.expect_all_works(of_parent);
  in_child([&] {
    for (int i = 0; i < 2; ++i) {
      REQUIRE(says_why(work.run(of_parent, 1).status()));  // A hit.
      REQUIRE(says_why(work.run(of_parent, 3).status()));  // A miss.
      REQUIRE(says_why(work.run(*fresh, 1).status()));
      Cache own;
      REQUIRE(says_why(work.run(own, 1).status()));
      REQUIRE(says_why(own.warm(key("k"), work.stream, [](cudaStream_t) {})));
    }
    REQUIRE(says_why(of_parent.status()));
    of_parent.erase(key("fill", 1));
    of_parent.clear();
    fresh = nullptr;
  });
  in_child([] {});  // The parent's caches end in a child that has not used them.
  in_child([] { of_parent.erase(key("fill", 1)); });
  // The parent goes on.
  for (const int byte : {1, 2}) {
    const auto outcome = work.run(of_parent, byte);
    REQUIRE(outcome.ok() && *outcome == Outcome::kReplayed);
    REQUIRE(work.read() == 0x01010101u * static_cast<unsigned>(byte));
  }
}

// Starts this program again for a scenario, and returns its exit status.
int run_scenario(const std::string& name) {
  const std::string variable = std::string(kVariable) + "=" + name;
  std::vector<char*> environment = {const_cast<char*>(variable.c_str())};
  for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, program, nullptr, nullptr, arguments, environment.data()) != 0) return -1;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkTest, ACacheThatWasMadeBeforeForkWorksInTheChildAndInTheParent) { EXPECT_EQ(run_scenario("made"), 0); }

TEST(ForkTest, InAChildOfAProcessThatHasUsedCudaRunsSaySo) { EXPECT_EQ(run_scenario("used"), 0); }

}  // namespace
}  // namespace graphcache

void before_cuda() {
  const char* const wanted = std::getenv(graphcache::kVariable);
  if (wanted == nullptr) return;
  std::string_view(wanted) == "made" ? graphcache::made_before_fork() : graphcache::used_before_fork();
  std::exit(0);
}
