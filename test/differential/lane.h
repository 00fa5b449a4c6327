// A thread of a world: runs programs through the cache on one memory and directly on another, in the same order, and
// compares the two.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <any>
#include <array>
#include <string>
#include <vector>

#include "any_lane.h"
#include "enqueue.h"
#include "graphcache/graphcache.h"
#include "memory.h"
#include "world.h"

namespace graphcache::test::differential {
inline namespace GRAPHCACHE_TEST_UNIT {

// The values of a run; for pointers, the numbers of their places.
struct Draw {
  int out, in, to, from;
  Values values;
};

class Lane final : public AnyLane {
 public:
  Lane(World& world, Cache& cache, int number);
  ~Lane() override;

  void work() override;
  Tally tally() const override { return tally_; }

 private:
  enum class Way { kRun, kNested, kWarm };

  void run(int number);
  cudaStream_t random_stream();
  void go_to(cudaStream_t stream);
  void operate(int program, const Values& values);
  void change_values();
  void change_structures();
  Values make_bad(const Values& good);
  Values values_for(const Memory& memory) const;
  template <class F>
  auto with_local(Memory& memory, cudaStream_t stream, const F& f);
  bool must_be_direct(int program) const;

  absl::Status call_cache(Way way, int program, cudaStream_t stream, const Values& values);
  cudaError_t enqueue_recorded(Recorder& recorder, int program, const Slots* slots);
  cudaError_t enqueue_directly(int program, cudaStream_t stream, const Values& values);
  int nested_program(const Op& op) const;

  void synchronize();
  void expect_left_alone(const char* when);
  void fault(const std::string& what);
  Key key_of(int program) const;
  const Program& program(int number) const { return programs_[static_cast<std::size_t>(number)]; }

  World& world_;
  Cache& cache_;
  const Settings& settings_;
  const std::vector<Program>& programs_;
  const int number_;
  Random random_;
  Memory cached_, direct_;
  std::vector<std::any> steps_;         // of the programs, once they have run as one
  std::vector<cudaStream_t> streams_;   // streams of runs, including the thread's own stream
  cudaStream_t stream_ = nullptr;       // stream of the last run
  cudaStream_t call_stream_ = nullptr;  // stream of the last call of the cache
  std::array<cudaStream_t, kStreams - 1> forks_{};
  Streams direct_streams_{};
  cudaEvent_t event_ = nullptr;
  Draw draw_{};
  Library library_{};  // in this run
  Outcome outcome_{};  // of the last run that has ended
  int run_ = 0;
  int hot_ = 0;  // the program that is currently run most often
  std::string doing_;
  Tally tally_;
};

}  // namespace GRAPHCACHE_TEST_UNIT
}  // namespace graphcache::test::differential
