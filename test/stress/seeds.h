// Seeds of random tests: from the environment, and named if the process hangs or dies with one.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace graphcache::test {

inline std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

inline const char* seed_variable = "";
inline volatile std::sig_atomic_t current_seed = 0;

inline void say_seed_and_die(int signal) {
  char text[128];
  const int size = std::snprintf(text, sizeof text, "\n%s, to replay: %s=%ld\n",
                                 signal == SIGALRM ? "the seed hangs" : "the seed ended the process", seed_variable,
                                 static_cast<long>(current_seed));
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<std::size_t>(size));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// From now on, a seed that ends the process or takes a minute is named. The variable replays it.
inline void watch_seeds(const char* variable) {
  seed_variable = variable;
  std::signal(SIGALRM, say_seed_and_die);
  std::signal(SIGABRT, say_seed_and_die);
}
inline void begin_seed(std::uint64_t seed) {
  current_seed = static_cast<std::sig_atomic_t>(seed);
  alarm(60);
}
inline void end_seeds() { alarm(0); }

}  // namespace graphcache::test
