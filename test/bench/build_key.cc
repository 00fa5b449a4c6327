// Time to build a key, relative to an uncontended lock and a look-up: build_key [--json FILE] [ROUNDS].
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

constexpr int kBatch = 10000;

// ns to build the key of a text of `bytes` bytes.
double of_text(int bytes) {
  const std::string text(static_cast<std::size_t>(bytes), 'x');
  return bench::each(kBatch, [&](int) { bench::keep(graphcache::key(text)); });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 200);
  const std::string text = "train_step_v2";
  int batch = 32, width = 4096, height = 128, layers = 1;
  const auto parts_are_used = [&] {
    bench::keep(batch);
    bench::keep(width);
    bench::keep(height);
    bench::keep(layers);
  };
  struct Way {
    const char* parts;
    std::function<double()> ns;
  } ways[] = {
      {"5 integers, text",
       [&] {
         return bench::each(kBatch, [&](int i) {
           parts_are_used();
           bench::keep(graphcache::key(batch, width, height, layers, i, text));
         });
       }},
      {"literal, 5 integers",
       [&] {
         return bench::each(kBatch, [&](int i) {
           parts_are_used();
           bench::keep(graphcache::key("train_step_v2", batch, width, height, layers, i));
         });
       }},
      {"literal, integer, 2 dim3",
       [&] { return bench::each(kBatch, [&](int i) { bench::keep(bench::numbered(i)); }); }},
      {"text of 16 bytes", [] { return of_text(16); }},
      {"text of 64 bytes", [] { return of_text(64); }},
      {"text of 1024 bytes", [] { return of_text(1024); }},
  };
  const auto keys = bench::numbered_keys(1);
  bench::LockAndFind lock_and_find(keys);
  std::vector<std::function<double()>> in_turns = {
      [&] { return bench::each(kBatch, [&](int) { lock_and_find(keys[0]); }); }};
  for (const Way& way : ways) in_turns.push_back(way.ns);
  const auto ns = bench::lowest_in_turns(rounds, in_turns);
  for (std::size_t i = 1; i < ns.size(); ++i) {
    report.add({"build_key", {{"parts", ways[i - 1].parts}}, "ns", ns[i], "lock_and_find", ns[0]});
  }
  return report.write();
}
