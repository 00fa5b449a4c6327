// What suites for both runtimes call of hostrt, for programs that are linked with CUDA's instead. No test gets here
// (chosen_suite.h).
#include <cstdlib>

#include "graphcache/hostrt.h"

namespace graphcache::hostrt {

std::uint64_t calls() { std::abort(); }
void clear_failures() { std::abort(); }
void fail_call(const char*, int, cudaError_t, int) { std::abort(); }
void hold(cudaStream_t) { std::abort(); }
std::string last_misuse() { std::abort(); }
Ledger ledger() { std::abort(); }
std::uint64_t misuses() { std::abort(); }
cudaError_t release(cudaStream_t) { std::abort(); }
void set_device_count(int) { std::abort(); }

}  // namespace graphcache::hostrt
