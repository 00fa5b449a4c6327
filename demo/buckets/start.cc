#include "start.h"

#include <absl/strings/str_format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "../../tools/progress.h"
#include "../support.h"

namespace demo {
namespace {

double free_bytes() {
  DEMO_CUDA(cudaDeviceSynchronize());
  std::size_t free = 0, all = 0;
  DEMO_CUDA(cudaMemGetInfo(&free, &all));
  return static_cast<double>(free);
}

Start start(const Plan& plan, const Kind& kind, const std::vector<Request>& then) {
  const Setup setup(plan);
  const Loop& loop = setup.loop();
  std::vector<Request> requests;
  for (int i = 0; i < plan.buckets; ++i) requests.emplace_back(i, i);
  requests.emplace_back(plan.buckets - 1, plan.buckets);
  std::vector<Request> all = requests;
  all.insert(all.end(), then.begin(), then.end());
  const std::vector<std::uint32_t> expected = reference(loop, all);

  loop.clear();
  Start start{};
  const double free_before = free_bytes();
  std::unique_ptr<Iteration> iteration;
  const double enqueued = microseconds([&] {
    iteration = kind.make(loop);
    for (const Request& request : requests) iteration->run(request);
  });
  const double waited = microseconds([&] { DEMO_CUDA(cudaStreamSynchronize(loop.stream)); });
  start.first_replay_ms = enqueued / 1000;
  start.first_replay_done_ms = (enqueued + waited) / 1000;
  for (const Request& request : then) iteration->run(request);
  start.taken_bytes = free_before - free_bytes();
  start.equal = loop.equals(expected, (kind.name + ", in a process of its own").c_str());
  return start;
}

// Also ends this process if the child process failed.
Start start_in_child(const Plan& plan, const Kind& kind, const std::vector<Request>& then) {
  int ends[2];
  pid_t child = -1;
  if (pipe(ends) == 0) child = fork();
  if (child == 0) {
    const Start measured = start(plan, kind, then);
    _exit(write(ends[1], &measured, sizeof(measured)) == static_cast<ssize_t>(sizeof(measured)) ? 0 : 1);
  }
  Start measured{};
  int status = 1;
  if (child > 0) {
    close(ends[1]);
    const bool whole = read(ends[0], &measured, sizeof(measured)) == static_cast<ssize_t>(sizeof(measured));
    close(ends[0]);
    if (waitpid(child, &status, 0) == child && whole && status == 0) return measured;
  }
  // The child has printed why.
  if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) != 0) std::exit(WEXITSTATUS(status));
  absl::FPrintF(stderr, "%s, in a process of its own: failed\n", kind.name);
  std::exit(1);
}

}  // namespace

std::vector<Start> measure_starts(const Plan& plan, const std::vector<Kind>& kinds, const std::vector<Request>& then,
                                  int repetitions) {
  std::vector<Start> starts;
  graphcache::tools::Progress progress("measuring the start-up");
  for (const Kind& kind : kinds) {
    progress.show(starts.size(), kinds.size());
    std::vector<double> first_replay_ms, first_replay_done_ms, taken_bytes;
    bool equal = true;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const Start measured = start_in_child(plan, kind, then);
      first_replay_ms.push_back(measured.first_replay_ms);
      first_replay_done_ms.push_back(measured.first_replay_done_ms);
      taken_bytes.push_back(measured.taken_bytes);
      equal = measured.equal && equal;
    }
    starts.push_back({median(first_replay_ms), median(first_replay_done_ms), median(taken_bytes), equal});
  }
  return starts;
}

}  // namespace demo
