"""The ways of PyTorch of workload.h: many_keys.py WAY.

  torch_eager     every kernel launched by PyTorch
  torch_graphs    a torch.cuda.CUDAGraph for each key, in a dictionary
  graphcache      graphcache_torch.Cache(), default options
  graphcache_own  graphcache_torch.Cache(share=False)

The last two need the module graphcache_torch (integrations/torch). A kernel is `tensor.add_(1)`.
"""
import json
import sys
import time

import torch

KEYS, KERNELS, BLOCK = 64, 200, 256
RUNS_TO_SETTLE, BATCHES, IN_BATCH, RUNS_IN_TOTAL = 1280, 500, 4, 2000


def order():
    """Keys in the random order of workload.h."""
    state = 1
    while True:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        yield (state >> 16) % KEYS


def step(tensor):
    for _ in range(KERNELS):
        tensor.add_(1)


def run_of(way, tensors):
    """What runs a key, and the version of what it is."""
    if way == "torch_eager":
        return lambda key: step(tensors[key]), torch.__version__
    if way == "torch_graphs":
        graphs = {}

        def run(key):
            graph = graphs.get(key)
            if graph is None:
                graph = graphs[key] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step(tensors[key])
            graph.replay()

        return run, torch.__version__
    import graphcache_torch

    cache = graphcache_torch.Cache(share=way == "graphcache")
    return lambda key: cache.run("many_keys", step, tensors[key]), graphcache_torch.__version__


def used_mib():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def measure(way):
    data = torch.zeros(KEYS * BLOCK, device="cuda")
    tensors = [data[: BLOCK * (key + 1)] for key in range(KEYS)]
    runs = [0] * KEYS
    for tensor in tensors:  # Loads the kernels.
        tensor.add_(0)
    run, version = run_of(way, tensors)

    def run_key(key):
        run(key)
        runs[key] += 1

    used = used_mib()
    began = time.perf_counter()
    for key in range(KEYS):
        run_key(key)
    torch.cuda.synchronize()
    start_up = time.perf_counter() - began
    device = used_mib() - used

    keys = order()
    for _ in range(RUNS_TO_SETTLE):
        run_key(next(keys))
    torch.cuda.synchronize()

    host = []
    for _ in range(BATCHES):
        for _ in range(IN_BATCH):
            key = next(keys)
            called = time.perf_counter_ns()
            run(key)
            host.append((time.perf_counter_ns() - called) / 1000)
            runs[key] += 1
        torch.cuda.synchronize()
    host.sort()
    began = time.perf_counter()
    for _ in range(RUNS_IN_TOTAL):
        run_key(next(keys))
    torch.cuda.synchronize()
    total = (time.perf_counter() - began) / RUNS_IN_TOTAL

    # The elements of block b are those of the keys from b on.
    expected = torch.tensor([KERNELS * sum(runs[block:]) for block in range(KEYS)], dtype=torch.float32)
    if not torch.equal(data.cpu(), expected.repeat_interleave(BLOCK)):
        sys.exit(f"{way}: the sums are wrong")
    return {
        "way": way, "version": version, "device": torch.cuda.get_device_name(),
        "start_up_ms": start_up * 1e3, "device_mib": device, "host_mean_us": sum(host) / len(host),
        "host_median_us": host[len(host) // 2], "host_p99_us": host[len(host) * 99 // 100], "total_us": total * 1e6,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("torch_eager", "torch_graphs", "graphcache", "graphcache_own"):
        sys.exit(__doc__)
    with torch.cuda.stream(torch.cuda.Stream()):
        print(json.dumps(measure(sys.argv[1])))
