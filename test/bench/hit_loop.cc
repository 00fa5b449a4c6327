// For test/bench/instructions: hit_loop run|built|step|lock_and_find TIMES does one of these TIMES times, with one key.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: hit_loop run|built|step|lock_and_find TIMES\n"), 2;
  const std::string way = argv[1];
  const int times = std::atoi(argv[2]);
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = bench::new_stream();
  graphcache::Cache cache(bench::unshared(64));
  const auto keys = bench::numbered_keys(1);
  bench::LockAndFind lock_and_find(keys);
  for (int i = 0; i < 10; ++i) bench::run(cache, stream, keys[0]);
  const auto repeat = [&](auto&& operation) {
    for (int i = 0; i < times; ++i) operation();
  };
  if (way == "run") repeat([&] { bench::must_hit(cache, stream, keys[0]); });
  if (way == "built") repeat([&] { bench::must_hit(cache, stream, bench::numbered(0)); });
  auto step = cache.prepare(keys[0], bench::Work<>());
  if (way == "step") repeat([&] { bench::must_be_hit(step.run(stream)); });
  if (way == "lock_and_find") repeat([&] { lock_and_find(keys[0]); });
}
