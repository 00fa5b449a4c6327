#include "cuda/this_thread.h"

#include <bit>
#include <cstdint>
#include <mutex>

namespace graphcache::detail {
namespace {

static_assert(ThisThread::kMany == 64, "a word has a bit for each number");
constinit std::mutex mutex;
constinit std::uint64_t taken = 1;  // One bit per number; no thread has number 0.

// Returns the number when the thread ends. Code that runs even later in the thread uses a shared number.
struct Owner {
  ~Owner() {
    const std::lock_guard<std::mutex> lock(mutex);
    taken &= ~(std::uint64_t{1} << this_thread.number);
    this_thread.number = ThisThread::kMany;
  }
};

}  // namespace

unsigned ThisThread::take_number() {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto number = static_cast<unsigned>(std::countr_one(taken));
  this_thread.number = number;
  if (number == kMany) return number;
  taken |= std::uint64_t{1} << number;
  static thread_local const Owner owner;
  (void)owner;
  return number;
}

}  // namespace graphcache::detail
