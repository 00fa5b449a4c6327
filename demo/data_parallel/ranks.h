// The ranks of a training: who takes part, and what their hosts tell each other.
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
  // The rank's number among those of its machine: which of the devices is its own.
  int number_here() const { return number_here_; }

  // Everybody's bytes, by rank. Every rank must call it, with as many bytes. On hostrt kernels call it, too, so that a
  // host must not while it has work under way.
  virtual void gather(const void* mine, std::size_t bytes, void* all) = 0;
  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(count_));
    gather(&mine, sizeof(T), all.data());
    return all;
  }
  // Comes back when every rank has called it.
  void meet() { gather(nullptr, 0, nullptr); }

  // The first ones of these, without the others. Every rank must call it; those beyond get nothing.
  virtual std::unique_ptr<Ranks> first(int count) = 0;

 protected:
  Ranks(int rank, int count, int number_here) : rank_(rank), count_(count), number_here_(number_here) {}

 private:
  const int rank_;
  const int count_;
  const int number_here_;
};

// Calls `train` in each of so many ranks of this program: threads, on a device each. On hostrt they are processes, for
// kernels of one process run one at a time there, and one that waits for another rank's would wait for ever. Returns
// what `train` returned for the first rank. A rank that ends by itself ends the program.
int run_here(int count, const std::function<int(Ranks&)>& train);

// The same for the processes that an MPI launcher has started. Where the program was built without MPI, a message, and
// 2.
int run_under_mpi(const std::function<int(Ranks&)>& train);

}  // namespace demo
