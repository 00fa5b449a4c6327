"""Decodes with a transformer in PyTorch, one graph for each batch size, in several ways:

  eager            every kernel launched by PyTorch
  torch            one torch.cuda.CUDAGraph for each batch size, captured as PyTorch's notes say, each with its own pool
  torch_one_pool   the same, with one pool for all
  graphcache_8     graphcache_torch.Cache(capture_after=0, max_executables=8)
  graphcache       graphcache_torch.Cache(capture_after=0)
  run_graph        the graphs of torch_one_pool, replayed by graphcache_torch.Cache(capture_after=0).run_graph

Two more run if --ways names them, because they compile for minutes:

  compile          torch.compile(mode="reduce-overhead"), which compiles once for nearly all sizes and records a graph for each
  compile_each     the same with dynamic=False, which compiles once for each size: use it with --sizes

Each way runs in a process of its own: its start-up is timed, its device memory measured, and the tokens that it has
decoded are compared with those of the way `eager`. The shapes are those of a model of 0.5 billion parameters, and the
weights are random.
"""
import argparse
import bisect
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import torch

import graphcache_torch

WAYS = ["eager", "torch", "torch_one_pool", "graphcache_8", "graphcache", "run_graph"]
COMPILE_WAYS = ["compile", "compile_each"]
MAX_BATCH, CONTEXT = 64, 256


class Decoder:
    """Layers of grouped-query attention and a gated MLP, with static memory for keys and values.

    A graph reads and writes the tensors of a Decoder where they were when it was captured. So each of them stays at its
    address: `step` and `reset` write into them and never replace them.
    """

    def __init__(self, layers, hidden=896, heads=14, kv_heads=2, inner=4864, vocabulary=151936):
        generator = torch.Generator("cuda").manual_seed(1)

        def weights(*shape):
            return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5

        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.embedding, self.head = weights(vocabulary, hidden), weights(vocabulary, hidden)
        self.layers = [
            (weights((heads + 2 * kv_heads) * self.size, hidden), weights(hidden, hidden), weights(2 * inner, hidden), weights(hidden, inner))
            for _ in range(layers)
        ]
        self.norm = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
        self.keys = [torch.zeros(MAX_BATCH, kv_heads, CONTEXT, self.size, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.rows = torch.arange(MAX_BATCH, device="cuda")
        self.places = torch.arange(CONTEXT, device="cuda")
        angles = self.places[:, None] * 10000.0 ** (-torch.arange(0, self.size, 2, device="cuda") / self.size)
        self.cos = torch.cat([angles.cos()] * 2, -1).bfloat16()
        self.sin = torch.cat([angles.sin()] * 2, -1).bfloat16()
        self.tokens = torch.zeros(MAX_BATCH, device="cuda", dtype=torch.long)
        self.positions = torch.zeros(MAX_BATCH, device="cuda", dtype=torch.long)
        self.reset()

    def tensors(self):
        """All weights, constants, keys, values and states."""
        return [
            self.embedding, self.head, self.norm, self.rows, self.places, self.cos, self.sin, self.tokens, self.positions,
            *(weight for layer in self.layers for weight in layer), *self.keys, *self.values,
        ]

    def reset(self):
        self.tokens.copy_(self.rows * 17 + 3)
        self.positions.zero_()
        for memory in self.keys + self.values:
            memory.zero_()

    def rotate(self, x, cos, sin):
        half = self.size // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    @torch.inference_mode()
    def step(self, batch):
        """One token for each of the first `batch` rows."""
        rows, at = self.rows[:batch], self.positions[:batch]
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        hidden = (self.norm.shape[0],)
        unseen = (self.places > at[:, None])[:, None, None]
        x = self.embedding[self.tokens[:batch]]
        for (qkv, out, up, down), keys, values in zip(self.layers, self.keys, self.values):
            y = torch.nn.functional.rms_norm(x, hidden, self.norm)
            q, k, v = torch.nn.functional.linear(y, qkv).view(batch, -1, self.size).split([self.heads, self.kv_heads, self.kv_heads], 1)
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            keys[rows, :, at] = k
            values[rows, :, at] = v
            q = q.view(batch, self.kv_heads, -1, self.size)
            scores = torch.matmul(q, keys[:batch].transpose(-1, -2)) * self.size**-0.5
            weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
            x = x + torch.nn.functional.linear(torch.matmul(weights, values[:batch]).view(batch, -1), out)
            y = torch.nn.functional.rms_norm(x, hidden, self.norm)
            gate, value = torch.nn.functional.linear(y, up).chunk(2, -1)
            x = x + torch.nn.functional.linear(torch.nn.functional.silu(gate) * value, down)
        logits = torch.nn.functional.linear(torch.nn.functional.rms_norm(x, hidden, self.norm), self.head)
        self.tokens[:batch] = logits.argmax(-1)
        self.positions[:batch] = (at + 1) % CONTEXT


class Compiled:
    """A Decoder's step by torch.compile(mode="reduce-overhead"). For each size the first call warms up, and compiles if no
    code fits; the second records a graph, and later ones replay it."""

    def __init__(self, model, sizes, dynamic):
        import torch._dynamo
        import torch._inductor.config

        # To the compiler, each tensor of `model` is an input. An input that is not static is copied into memory of the
        # graph before each replay, the weights as well. A function that writes into one runs without a graph ("skipping
        # cudagraphs due to mutated inputs"), because its copy would be written. Parameters and buffers of an nn.Module are
        # static, and so are tensors with this mark.
        for tensor in model.tensors():
            torch._dynamo.mark_static_address(tensor)
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, len(sizes) + 1)
        torch._inductor.config.triton.cudagraph_dynamic_shape_warn_limit = None
        torch._dynamo.utils.counters.clear()
        # The step without its inference_mode: PyTorch 2.11 fails to compile a function that enters it.
        self.step = torch.compile(Decoder.step.__wrapped__.__get__(model), mode="reduce-overhead", dynamic=dynamic)

    @torch.no_grad()
    def __call__(self, batch):
        torch.compiler.cudagraph_mark_step_begin()
        self.step(batch)

    def stats(self):
        from torch._inductor import cudagraph_trees

        counters = torch._dynamo.utils.counters
        manager = cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager
        roots = [node for nodes in manager.roots.values() for node in nodes] if manager else []
        return {
            "compiled": counters["stats"]["unique_graphs"],
            "recorded": sum(1 + root.num_descendants() for root in roots),
            "skipped": counters["inductor"]["cudagraph_skips"],
        }


def sizes_of(number):
    """`number` batch sizes, evenly spaced up to MAX_BATCH."""
    return sorted({-(-MAX_BATCH * i // number) for i in range(1, number + 1)})


def batches(steps, sizes):
    """Sizes of a server's batches: requests come and go. Each is rounded up to one of `sizes`."""
    draw = random.Random(5)
    size, drawn = 16, []
    for _ in range(steps):
        size = min(max(size + draw.choice([-3, -2, -1, -1, 0, 1, 1, 2, 3]), 1), MAX_BATCH)
        if draw.random() < 0.02:
            size = draw.randint(1, MAX_BATCH)
        drawn.append(sizes[bisect.bisect_left(sizes, size)])
    return drawn


def used_device_bytes():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def start(way, model, sizes):
    """Prepares a way. Returns the function that runs a step."""
    if way == "eager":
        return model.step, None
    if way.startswith("torch") or way == "run_graph":
        pool = None if way == "torch" else torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()
        graphs = {}
        for batch in sizes:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model.step(batch)  # the warm-up that PyTorch's notes require
            torch.cuda.current_stream().wait_stream(side)
            graphs[batch] = torch.cuda.CUDAGraph(keep_graph=way == "run_graph")
            with torch.cuda.graph(graphs[batch], pool=pool):
                model.step(batch)
        if way == "run_graph":
            cache = graphcache_torch.Cache(capture_after=0)
            makers = {batch: lambda graph=graph: graph for batch, graph in graphs.items()}
            return lambda batch: cache.run_graph(("decode", batch), makers[batch]), cache
        return lambda batch: graphs[batch].replay(), graphs
    if way in COMPILE_WAYS:
        compiled = Compiled(model, sizes, dynamic=False if way == "compile_each" else None)
        for _ in range(3):  # warms up, and records; the first size is warmed up again when the code for all sizes is there
            for batch in sizes:
                compiled(batch)
        return compiled, compiled
    cache = graphcache_torch.Cache(capture_after=0, max_executables=8) if way == "graphcache_8" else graphcache_torch.Cache(capture_after=0)
    step = model.step
    for batch in sizes:
        cache.warm("decode", step, batch)
    return lambda batch: cache.run("decode", step, batch), cache


def measure(way, layers, steps, number, history_file):
    model = Decoder(layers)
    all_sizes = sizes_of(number)
    # Libraries initialise themselves at their first call, which must not count.
    for batch in (all_sizes[-1], all_sizes[0]):
        model.step(batch)
    if way in COMPILE_WAYS:
        torch.compile(lambda x: x + 1)(model.norm)
    before = used_device_bytes()
    began = time.perf_counter()
    run, kept = start(way, model, all_sizes[::-1])
    for batch in all_sizes[::-1]:
        run(batch)
    torch.cuda.synchronize()
    start_up = time.perf_counter() - began
    memory = used_device_bytes() - before
    start_stats = kept.stats() if hasattr(kept, "stats") else {}

    sizes = batches(steps, all_sizes)
    model.reset()
    history = torch.zeros(steps, MAX_BATCH, device="cuda", dtype=torch.long)
    host = 0.0
    torch.cuda.synchronize()
    began = time.perf_counter()
    for i, batch in enumerate(sizes):
        at = time.perf_counter()
        run(batch)
        host += time.perf_counter() - at
        history[i].copy_(model.tokens)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began

    latencies = []
    for batch in sizes[:500]:  # waits for each step, like a server that streams its tokens
        at = time.perf_counter()
        run(batch)
        torch.cuda.synchronize()
        latencies.append(time.perf_counter() - at)
    latencies.sort()
    history = history.cpu()
    torch.save(history, history_file)
    result = {
        "way": way,
        "tokens": hashlib.sha256(history.numpy().tobytes()).hexdigest(),
        "distinct_tokens": int(history.unique().numel()),
        "tokens_per_s": sum(sizes) / seconds,
        "host_us": host / steps * 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
        "start_up_s": start_up,
        "mib": memory / 2**20,
        "peak_mib": (used_device_bytes() - before) / 2**20,
    }
    if start_stats:
        result["start_stats"], result["stats"] = start_stats, kept.stats()
    return result


def measure_hit(rounds=5, runs=4000):
    """Host time of a replay of one small kernel, in microseconds: PyTorch's and graphcache's, in turns."""
    x = torch.zeros(64, device="cuda")

    def step(x):
        x.add_(1)

    step(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x)
    cache = graphcache_torch.Cache(capture_after=0)
    ways = {"torch.cuda.CUDAGraph.replay": graph.replay, "graphcache_torch.Cache.run": lambda: cache.run(("add", 64), step, x)}
    plain = lambda: None
    ways["an empty lambda"] = plain
    best = {}
    for _ in range(rounds):
        for name, call in ways.items():
            torch.cuda.synchronize()
            times = []
            for _ in range(runs):
                at = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - at)
                if len(times) % 500 == 0:
                    torch.cuda.synchronize()
            times.sort()
            best.setdefault(name, []).append(times[runs // 2] / 1e3)
    return {name: sorted(all)[rounds // 2] for name, all in best.items()}


def equal_tokens(history, expected, sizes):
    """The share of the tokens that are equal, of those that steps with these batch sizes have decoded."""
    decoded = torch.arange(MAX_BATCH) < torch.tensor(sizes)[:, None]
    return ((history == expected)[: len(sizes)] & decoded).sum().item() / decoded.sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--sizes", type=int, default=MAX_BATCH, metavar="N", help=f"the number of batch sizes, evenly spaced up to {MAX_BATCH}")
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--json", metavar="FILE", help="writes the figures")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--history", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 1 <= arguments.sizes <= MAX_BATCH:
        parser.error(f"--sizes is not within 1 to {MAX_BATCH}")
    if not torch.cuda.is_available():
        sys.exit("torch_decode: PyTorch finds no CUDA device")
    if arguments.way:
        print(json.dumps(measure(arguments.way, arguments.layers, arguments.steps, arguments.sizes, arguments.history)))
        return

    ways = arguments.ways.split(",")
    if unknown := set(ways) - set(WAYS + COMPILE_WAYS):
        parser.error(f"no such way: {', '.join(unknown)}")
    results, histories = [], {}
    for way in ways:
        if sys.stderr.isatty():
            print(f"\r{way} ({len(results) + 1} of {len(ways)})\033[K", end="", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            # The compiler has an empty cache, so that its start-up is that of a first start.
            environment = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "compiled"), **os.environ}
            history = os.path.join(folder, "history")
            child = subprocess.run(
                [sys.executable, __file__, "--way", way, "--layers", str(arguments.layers), "--steps", str(arguments.steps),
                 "--sizes", str(arguments.sizes), "--history", history],
                stdout=subprocess.PIPE, text=True, check=way not in COMPILE_WAYS, env=environment)
            if child.returncode != 0:
                print(f"{way}: failed with status {child.returncode}, and is left out", file=sys.stderr)
                continue
            histories[way] = torch.load(history)
        results.append(json.loads(child.stdout.splitlines()[-1]))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    all_sizes = sizes_of(arguments.sizes)
    sizes = batches(arguments.steps, all_sizes)
    exact = [result for result in results if result["way"] not in COMPILE_WAYS]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {arguments.steps} steps, {len(all_sizes)} batch sizes up to {MAX_BATCH}, {arguments.layers} layers")
    print(f"{'way':16} {'tokens/s':>9} {'host us':>8} {'p50 ms':>7} {'p99 ms':>7} {'start s':>8} {'MiB':>7}  outcomes")
    for result in results:
        stats = result.get("stats", {})
        outcomes = ", ".join(f"{name} {stats[name]}" for name in ("replayed", "switched", "restored", "updated", "instantiated", "eager", "compiled", "recorded", "skipped") if stats.get(name))
        print(f"{result['way']:16} {result['tokens_per_s']:9.0f} {result['host_us']:8.1f} {result['p50_ms']:7.2f} {result['p99_ms']:7.2f} "
              f"{result['start_up_s']:8.2f} {result['mib']:7.0f}  {outcomes}")
    hit = measure_hit()
    print("host time of a replay: " + ", ".join(f"{name} {us:.2f} us" for name, us in hit.items()))
    for result in results:
        if result["way"] in COMPILE_WAYS and exact:
            history, expected = histories[result["way"]], histories[exact[0]["way"]]
            result["equal_tokens"] = equal_tokens(history, expected, sizes)
            result["equal_tokens_at_first"] = equal_tokens(history, expected, sizes[:10])
            print(f"{result['way']}: {result['equal_tokens']:.1%} of the tokens are those of {exact[0]['way']}, and {result['equal_tokens_at_first']:.1%} in the "
                  "first 10 steps. The compiler's kernels round otherwise, and each token decides the next.")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ways": results, "hit_us": hit}, file, indent=1)
    if len({result["tokens"] for result in exact}) > 1:
        sys.exit("results: NOT equal: the ways have decoded different tokens")
    if exact:
        others = " except those that compile" if set(ways) & set(COMPILE_WAYS) else ""
        print(f"results: every way{others} decoded the same tokens, bit by bit ({exact[0]['distinct_tokens']} different ones)")


if __name__ == "__main__":
    main()
