// Time of a hit on hostrt, relative to an uncontended lock and a look-up: hit [--json FILE] [ROUNDS].
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

constexpr int kBatch = 20000;

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 150);
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = bench::new_stream();
  graphcache::Cache cache(bench::unshared(300));

  for (const int count : {1, 64}) {
    const auto keys = bench::numbered_keys(count);
    const auto of = [&](auto& all, int i) -> auto& { return all[static_cast<std::size_t>(i & (count - 1))]; };
    bench::LockAndFind lock_and_find(keys);
    for (const auto& each : keys) {
      bench::run(cache, stream, each);
      bench::run(cache, stream, each, 1.0f, 2.0f);
    }
    int batch = 0, sizes[] = {4096, 128, 1, 32};
    const std::string text = "train_step_v2";
    const auto of_integers = [&](int i) {
      bench::keep(sizes);
      return graphcache::key(i, sizes[0], sizes[1], sizes[2], sizes[3], text);
    };
    bench::keep(batch);
    for (int i = 0; i < count; ++i) bench::run(cache, stream, of_integers(i));
    std::vector<graphcache::Step<bench::Work<>>> steps;
    std::vector<graphcache::Step<bench::Work<float, float>>> steps_with_params;
    for (const auto& each : keys) {
      steps.push_back(cache.prepare(each, bench::Work<>()));
      steps_with_params.push_back(cache.prepare(each, bench::Work<float, float>()));
    }
    struct Way {
      const char* way;
      int params;
      const char* key;
      std::function<double()> ns;
    };
    std::vector<Way> ways = {
        {"run", 0, "prebuilt",
         [&] { return bench::each(kBatch, [&](int i) { bench::must_hit(cache, stream, of(keys, i)); }); }},
        {"run", 2, "prebuilt",
         [&] { return bench::each(kBatch, [&](int i) { bench::must_hit(cache, stream, of(keys, i), 1.0f, 2.0f); }); }},
        {"run", 0, "built",
         [&] {
           return bench::each(
               kBatch, [&](int i) { bench::must_hit(cache, stream, bench::numbered(batch + (i & (count - 1)))); });
         }},
        {"run", 0, "built of 5 integers, text",
         [&] {
           return bench::each(kBatch, [&](int i) { bench::must_hit(cache, stream, of_integers(i & (count - 1))); });
         }},
        {"step", 0, "prebuilt",
         [&] { return bench::each(kBatch, [&](int i) { bench::must_be_hit(of(steps, i).run(stream)); }); }},
        {"step", 2, "prebuilt",
         [&] {
           return bench::each(kBatch, [&](int i) {
             bench::must_be_hit(of(steps_with_params, i).run(stream, graphcache::params(1.0f, 2.0f)));
           });
         }},
    };
    std::vector<std::function<double()>> in_turns = {
        [&] { return bench::each(kBatch, [&](int i) { lock_and_find(of(keys, i)); }); }};
    for (const Way& way : ways) in_turns.push_back(way.ns);
    const auto ns = bench::lowest_in_turns(rounds, in_turns);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      report.add({"hit",
                  {{"way", ways[i].way}, {"keys", count}, {"params", ways[i].params}, {"key", ways[i].key}},
                  "ns",
                  ns[i + 1],
                  "lock_and_find",
                  ns[0]});
    }
  }
  return report.write();
}
