#include "serve.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

// Measurements of one worker's thread.
struct Samples {
  Clock::time_point first_tokens;
  Clock::time_point end;
  std::vector<double> host_us;
  std::vector<std::pair<double, int>> step_us;  // with the number of answer tokens that the step produced
};

// Serves one worker's requests in its own thread. The device works on a step while the host prepares the next one.
class Server {
 public:
  Server(const Plan& plan, const Worker& worker, int index, Decoder& decoder, Choice* choices)
      : traffic_(plan.traffic),
        worker_(worker),
        index_(index),
        decoder_(decoder),
        choices_(choices),
        batcher_(plan.traffic, plan.buckets, index) {}

  void serve(Samples* samples) {
    for (int step = 0; step < traffic_.steps; ++step) {
      const int place = step % Worker::kPlaces;
      const Batch batch = batcher_.next(worker_.rows(place));
      if (batch.rows == 0) continue;
      const auto begin = Clock::now();
      decoder_.run(index_, {batch.bucket, batch.splits, worker_.rows(place), worker_.choices(place)});
      samples->host_us.push_back(microseconds_between(begin, Clock::now()));
      DEMO_CUDA(cudaEventRecord(done_[place].get(), worker_.stream()));
      in_flight_.push_back({batch, place, begin});
      const bool is_first = samples->step_us.empty();
      while (in_flight_.size() >= (is_first ? 1 : Worker::kPlaces)) finish(samples);
      if (is_first) samples->first_tokens = last_;
    }
    while (!in_flight_.empty()) finish(samples);
    samples->end = last_;
  }

 private:
  struct InFlight {
    Batch batch;
    int place;
    Clock::time_point begin;
  };

  void finish(Samples* samples) {
    const InFlight step = in_flight_.front();
    in_flight_.pop_front();
    DEMO_CUDA(cudaEventSynchronize(done_[step.place].get()));
    const auto now = Clock::now();
    samples->step_us.emplace_back(microseconds_between(std::max(last_, step.begin), now), step.batch.tokens);
    last_ = now;
    const Choice* const from = worker_.choices(step.place);
    choices_ = std::copy(from, from + step.batch.rows, choices_);
  }

  const Traffic& traffic_;
  const Worker& worker_;
  const int index_;
  Decoder& decoder_;
  Choice* choices_;
  Batcher batcher_;
  Event done_[Worker::kPlaces];
  std::deque<InFlight> in_flight_;
  Clock::time_point last_;  // when the last step's tokens arrived
};

// The time within which this share of the answer tokens arrived; each token counts its step's time.
double percentile(std::vector<std::pair<double, int>> step_us, double part, double tokens) {
  std::sort(step_us.begin(), step_us.end());
  double up_to = 0;
  for (const auto& [us, of_step] : step_us) {
    up_to += of_step;
    if (up_to >= part * tokens) return us;
  }
  return 0;
}

double free_bytes() {
  DEMO_CUDA(cudaDeviceSynchronize());
  std::size_t free = 0, all = 0;
  DEMO_CUDA(cudaMemGetInfo(&free, &all));
  return static_cast<double>(free);
}

}  // namespace

Figures serve(const Plan& plan, const Kind& kind, const std::vector<Choice*>& choices) {
  const Network network(plan.shape);
  const Model model(network);
  Workers workers;
  for (int i = 0; i < plan.workers; ++i) workers.push_back(std::make_unique<Worker>(model, plan.buckets));

  const double free_before = free_bytes();
  const std::unique_ptr<Decoder> decoder = kind.make(workers);
  std::vector<Samples> samples(workers.size());
  Clock::time_point start, serving;
  std::uint64_t calls_before = 0;
  std::barrier all_there(plan.workers, [&]() noexcept { start = Clock::now(); });
  std::barrier all_prepared(plan.workers, [&]() noexcept {
    calls_before = runtime_calls().value_or(0);
    serving = Clock::now();
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < plan.workers; ++i) {
    threads.emplace_back([&, i] {
      DEMO_CUDA(cudaSetDevice(0));
      Server server(plan, *workers[size(i)], i, *decoder, choices[size(i)]);
      all_there.arrive_and_wait();
      decoder->prepare(i);
      all_prepared.arrive_and_wait();
      server.serve(&samples[size(i)]);
    });
  }
  for (std::thread& thread : threads) thread.join();

  Figures figures;
  figures.calls = static_cast<double>(runtime_calls().value_or(0) - calls_before);
  figures.taken_bytes = free_before - free_bytes();
  std::vector<double> host_us;
  std::vector<std::pair<double, int>> step_us;
  for (const Samples& of_worker : samples) {
    figures.start_ms = std::max(figures.start_ms, microseconds_between(start, of_worker.first_tokens) / 1000);
    figures.serving_ms = std::max(figures.serving_ms, microseconds_between(serving, of_worker.end) / 1000);
    host_us.insert(host_us.end(), of_worker.host_us.begin(), of_worker.host_us.end());
    step_us.insert(step_us.end(), of_worker.step_us.begin(), of_worker.step_us.end());
  }
  for (const auto& [us, tokens] : step_us) figures.tokens += tokens;
  figures.calls /= static_cast<double>(step_us.size());
  figures.token_p50_us = percentile(step_us, 0.5, figures.tokens);
  figures.token_p99_us = percentile(step_us, 0.99, figures.tokens);
  figures.host_us = median(host_us);
  figures.counters = decoder->counters();
  if (const auto stats = decoder->stats()) {
    figures.has_outcomes = true;
    figures.outcomes = stats->outcomes;
  }
  return figures;
}

}  // namespace demo
