// A cache of many keys on hostrt, and a plain absl::flat_hash_map of as many: index [--json FILE] [MOST_KEYS].
//
//   hit     a hit, in random order; reference: the look-up in the map, in the same order
//   memory  bytes of the heap for each key, without what its graph and executable take by themselves; reference: the
//   map clear   clear(), for each key; reference: raw calls that destroy as many graphs and executables
#include <absl/container/flat_hash_map.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

double heap() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

// A graph of one kernel and its executable, as each key of the cache has them.
struct Bare {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
};

std::vector<Bare> instantiate(cudaStream_t stream, int count) {
  std::vector<Bare> all(static_cast<std::size_t>(count));
  for (Bare& bare : all) {
    bench::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    float* data = nullptr;
    float value = 1;
    void* arguments[] = {&data, &value};
    bench::check(
        cudaLaunchKernel(reinterpret_cast<const void*>(&bench::nothing), dim3(1), dim3(1), arguments, 0, stream));
    bench::check(cudaStreamEndCapture(stream, &bare.graph));
    bench::check(cudaGraphInstantiate(&bare.exec, bare.graph, 0));
  }
  return all;
}

// ns for each.
double destroy(const std::vector<Bare>& all) {
  return bench::nanoseconds([&] {
           for (const Bare& bare : all) {
             bench::check(cudaGraphExecDestroy(bare.exec));
             bench::check(cudaGraphDestroy(bare.graph));
           }
         }) /
         static_cast<double>(all.size());
}

void measure(bench::Report& report, cudaStream_t stream, int count) {
  const auto keys = bench::numbered_keys(count);
  const double keys_alone = heap();
  absl::flat_hash_map<graphcache::Key, const graphcache::Key*> map;
  for (const auto& key : keys) map.emplace(key, &key);
  const double map_bytes = heap() - keys_alone;

  double before = heap();
  auto bare = instantiate(stream, count);
  const double bare_bytes = heap() - before;
  before = heap();
  graphcache::Cache cache(bench::unshared(count + 1));
  const auto fill = [&] {
    for (const auto& key : keys) bench::run(cache, stream, key);
  };
  fill();
  const double cache_bytes = heap() - before;

  std::mt19937 random(1);
  std::vector<const graphcache::Key*> order(200000);
  for (auto& key : order) key = &keys[random() % keys.size()];
  // A batch is shorter than the scheduler's time slice, and continues where the last one ended.
  constexpr int kBatch = 4000;
  std::size_t at_find = 0, at_hit = 0;
  const auto next = [&](std::size_t& at) -> const graphcache::Key& {
    at = at + 1 == order.size() ? 0 : at + 1;
    return *order[at];
  };
  const auto ns = bench::lowest_in_turns(
      300, {[&] {
              return bench::each(kBatch, [&](int) {
                const auto found = map.find(next(at_find));
                bench::keep(found->second);
              });
            },
            [&] { return bench::each(kBatch, [&](int) { bench::must_hit(cache, stream, next(at_hit)); }); }});
  report.add({"index", {{"operation", "hit"}, {"keys", count}}, "ns", ns[1], "flat_hash_map", ns[0]});
  if (count == 1) return;
  report.add({"index",
              {{"operation", "memory"}, {"keys", count}},
              "bytes",
              (cache_bytes - bare_bytes) / count,
              "flat_hash_map",
              map_bytes / count});
  const bool repeats = count <= 10000;  // otherwise once, which is too few for a guarded ratio
  double cleared = std::numeric_limits<double>::max(), destroyed = cleared;
  for (int round = 0; round < (repeats ? 20 : 1); ++round) {
    if (round > 0) {
      bare = instantiate(stream, count);
      fill();
    }
    destroyed = std::min(destroyed, destroy(bare));
    cleared = std::min(cleared, bench::nanoseconds([&] { cache.clear(); }) / count);
  }
  report.add({"index", {{"operation", "clear"}, {"keys", count}}, "ns", cleared, "raw calls", destroyed, repeats});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int most = report.argument(0, 1000000);
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = bench::new_stream();
  for (const int count : {1, 1000, most}) measure(report, stream, count);
  return report.write();
}
