// A program on libtorch that uses each part of graphcache_torch.h. It is compiled, not run.
#include <ATen/ATen.h>
#include <graphcache_torch.h>

#include <functional>
#include <memory>

absl::Status use(at::Tensor in, at::Tensor out, const at::Generator& generator,
                 std::shared_ptr<at::cuda::CUDAGraph> graph) {
  graphcache::Options options;
  options.max_executables = 8;
  graphcache::TorchCache cache(options);
  graphcache::TorchCache one_per_key({}, graphcache::TorchCache::Pools::kOnePerKey);
  cache.register_generator(generator);
  if (auto outcome = cache.run_graph(graphcache::key("own"), [&] { return graph; }); !outcome.ok()) {
    return outcome.status();
  }

  const auto add = [&] {
    at::add_out(out, in, in);
    cache.keep(std::make_shared<at::Tensor>(in));
  };
  if (absl::Status status = cache.warm(graphcache::key("add"), add); !status.ok()) return status;
  const std::function<void()> erased = add;
  if (auto outcome = cache.run(graphcache::key("erased"), erased); !outcome.ok()) return outcome.status();
  const auto draw = [&]() -> absl::Status {
    in.uniform_(0, 1, generator);
    cache.begin_results();
    return absl::OkStatus();
  };
  return one_per_key.run(graphcache::key("draw", in.size(0)), draw).status();
}
