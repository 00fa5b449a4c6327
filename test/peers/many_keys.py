"""The ways of PyTorch of workload.h: many_keys.py WAY.

  torch_eager     every kernel launched by PyTorch
  torch_graphs    a torch.cuda.CUDAGraph for each key, in a dictionary
  graphcache      graphcache_torch.Cache(), default options
  graphcache_own  graphcache_torch.Cache(share=False)

The last two need the module graphcache_torch (integrations/torch). A kernel is `tensor.add_(1)`.
"""
import sys

import torch

from workload import BLOCK, KERNELS, KEYS, measure


def step(tensor):
    for _ in range(KERNELS):
        tensor.add_(1)


def run_of(way, tensors):
    """The function that runs a key, and the version of the library."""
    if way == "torch_eager":
        return lambda key: step(tensors[key]), f"PyTorch {torch.__version__}"
    if way == "torch_graphs":
        graphs = {}

        def run(key):
            graph = graphs.get(key)
            if graph is None:
                graph = graphs[key] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step(tensors[key])
            graph.replay()

        return run, f"PyTorch {torch.__version__}"
    import graphcache_torch

    cache = graphcache_torch.Cache(share=way == "graphcache")
    return lambda key: cache.run("many_keys", step, tensors[key]), graphcache_torch.__version__


def used_mib():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def main(way):
    data = torch.zeros(KEYS * BLOCK, device="cuda")
    tensors = [data[: BLOCK * (key + 1)] for key in range(KEYS)]
    for tensor in tensors:  # Loads the kernels.
        tensor.add_(0)
    run, version = run_of(way, tensors)
    figures, runs = measure(way, version, torch.cuda.get_device_name(), run, torch.cuda.synchronize, used_mib)
    # The keys from b on use the elements of block b.
    expected = torch.tensor([KERNELS * sum(runs[block:]) for block in range(KEYS)], dtype=torch.float32)
    if not torch.equal(data.cpu(), expected.repeat_interleave(BLOCK)):
        sys.exit(f"{way}: the sums are wrong")
    print(figures)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("torch_eager", "torch_graphs", "graphcache", "graphcache_own"):
        sys.exit(__doc__)
    with torch.cuda.stream(torch.cuda.Stream()):
        main(sys.argv[1])
