// The ranks of a training, and the communication between their hosts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace demo {

inline constexpr int kMostRanksHere = 16;

class Ranks {
 public:
  virtual ~Ranks() = default;
  int rank() const { return rank_; }
  int count() const { return count_; }
  // The rank's number among those of its machine, which selects its device.
  int number_here() const { return number_here_; }

  // Gathers the bytes of all ranks, by rank. Every rank must call it, with the same size. On hostrt kernels call it as
  // well, so a host must not call it while it has work in flight.
  virtual void gather(const void* mine, std::size_t bytes, void* all) = 0;
  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(count_));
    gather(&mine, sizeof(T), all.data());
    return all;
  }
  // Returns when every rank has called it.
  void meet() { gather(nullptr, 0, nullptr); }

  // The first `count` of these ranks as a group. Every rank must call it; the others get null.
  virtual std::unique_ptr<Ranks> first(int count) = 0;

 protected:
  Ranks(int rank, int count, int number_here) : rank_(rank), count_(count), number_here_(number_here) {}

 private:
  const int rank_;
  const int count_;
  const int number_here_;
};

// Calls `train` in `count` ranks of this program: threads with a device each. On hostrt they are processes, because
// hostrt runs the kernels of one process one at a time, and a kernel that waits for another rank's would wait for ever.
// Returns the result of the first rank. A rank that exits ends the program.
int run_here(int count, const std::function<int(Ranks&)>& train);

// The same for processes that an MPI launcher has started. If the program was built without MPI, prints a message and
// returns 2.
int run_under_mpi(const std::function<int(Ranks&)>& train);

}  // namespace demo
