#include "ranks.h"

#include <absl/strings/str_format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "../support.h"

namespace demo {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{1} << 20;

// A meeting point for ranks in shared memory.
struct Meeting {
  pthread_barrier_t barrier;
  std::byte slots[kMostRanksHere][kSlotBytes];
};

// One for each number of ranks. Threads need fewer; untouched pages cost nothing.
using Meetings = std::array<Meeting, kMostRanksHere + 1>;

class RanksHere : public Ranks {
 public:
  RanksHere(int rank, int count, Meeting& all, Meetings& parts)
      : Ranks(rank, count, rank), meeting_(all), parts_(parts) {}

  using Ranks::gather;
  void gather(const void* mine, std::size_t bytes, void* all) override {
    std::size_t done = 0;
    do {  // at least once, for meet()
      const std::size_t piece = std::min(bytes - done, kSlotBytes);
      if (piece != 0) std::memcpy(meeting_.slots[rank()], static_cast<const std::byte*>(mine) + done, piece);
      pthread_barrier_wait(&meeting_.barrier);
      for (int i = 0; i < count() && piece != 0; ++i) {
        std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(i) * bytes + done, meeting_.slots[i],
                    piece);
      }
      pthread_barrier_wait(&meeting_.barrier);
      done += piece;
    } while (done < bytes);
  }

  std::unique_ptr<Ranks> first(int count) override {
    if (rank() >= count) return nullptr;
    return std::make_unique<RanksHere>(rank(), count, parts_[static_cast<std::size_t>(count)], parts_);
  }

 private:
  Meeting& meeting_;
  Meetings& parts_;
};

[[noreturn]] void fail(const char* call) {
  std::perror(call);
  std::exit(1);
}

int run_threads(int count, const std::function<int(int)>& train) {
  std::vector<std::thread> others;
  for (int rank = 1; rank < count; ++rank) others.emplace_back([&, rank] { train(rank); });
  const int status = train(0);
  for (std::thread& other : others) other.join();
  return status;
}

// Other ranks would wait for one that has died.
void end_with_child(int) {
  int status = 0;
  while (waitpid(-1, &status, WNOHANG) > 0) {
    if (status != 0) _exit(1);
  }
}

int run_processes(int count, const std::function<int(int)>& train) {
  std::fflush(nullptr);
  signal(SIGCHLD, end_with_child);
  for (int rank = 1; rank < count; ++rank) {
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      signal(SIGCHLD, SIG_DFL);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      train(rank);
      std::exit(0);
    }
  }
  int status = train(0);
  signal(SIGCHLD, SIG_DFL);
  int of_child = 0;
  while (wait(&of_child) > 0) {
    if (of_child != 0) status = 1;
  }
  return status;
}

}  // namespace

int run_here(int count, const std::function<int(Ranks&)>& train) {
  void* const memory =
      mmap(nullptr, sizeof(Meetings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  auto& meetings = *static_cast<Meetings*>(memory);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  // The first meeting is that of all ranks.
  pthread_barrier_init(&meetings[0].barrier, &shared, static_cast<unsigned>(count));
  for (int i = 1; i <= count; ++i) {
    pthread_barrier_init(&meetings[static_cast<std::size_t>(i)].barrier, &shared, static_cast<unsigned>(i));
  }
  const auto train_as = [&](int rank) {
    RanksHere all(rank, count, meetings[0], meetings);
    return train(all);
  };
  return on_gpu() ? run_threads(count, train_as) : run_processes(count, train_as);
}

}  // namespace demo
