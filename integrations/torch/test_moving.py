# Tensors and floats that change from run to run: python3 -m unittest test_moving, on a GPU. As a program it shows how
# often functions are captured, and what hits cost.
import dataclasses
import gc
import time
import unittest
import weakref

import torch
import torch.nn.functional as F

import graphcache_torch

ON_GPU = torch.cuda.is_available()


def rand(*shape, dtype=torch.float32):
    return torch.rand(*shape, device="cuda").to(dtype) - 0.5


class Block(torch.nn.Module):
    """A block of a Llama: RMS norms, rotary positions, attention, and a gated network."""

    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(width) for _ in range(2)])
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.gate, self.up = (torch.nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * width, width, bias=False)

    def rotate(self, x, positions):
        half = x.shape[-1] // 2
        frequencies = 1.0 / 10000 ** (torch.arange(half, device=x.device) / half)
        angles = positions[:, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, positions):
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def cases():
    """Functions, what makes their arguments, and whether these must be found. Others may have undefined bytes in their
    kernels' arguments, which hinder it, and are captured again where they do."""
    torch.manual_seed(3)
    half = torch.bfloat16
    weights = rand(256, 256)
    layer = torch.nn.Linear(256, 512, device="cuda", dtype=half)
    norm, batch_norm = torch.nn.LayerNorm(256, device="cuda"), torch.nn.BatchNorm2d(8, device="cuda").eval()
    encoder = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True).to("cuda", half).eval()
    block = Block().to("cuda", half).eval()
    conv = torch.nn.Conv2d(8, 16, 3, padding=1, device="cuda")
    table = torch.nn.Embedding(1000, 256, device="cuda")
    gru = torch.nn.GRU(64, 64, device="cuda")
    yield "pointwise", lambda x, y: torch.sin(x * y) + x, lambda: (rand(1000), rand(1000)), True
    yield "linear", layer, lambda: (rand(64, 256, dtype=half),), True
    yield "one row", layer, lambda: (rand(1, 256, dtype=half),), True
    yield "f32 product", lambda x: x @ weights, lambda: (rand(64, 256),), True
    yield "two products", lambda x, y: (x @ y) @ weights, lambda: (rand(64, 256), rand(256, 256)), True
    yield "batched product", torch.bmm, lambda: (rand(8, 64, 32), rand(8, 32, 64)), True
    yield "layer norm", norm, lambda: (rand(64, 256),), True
    yield "batch norm", batch_norm, lambda: (rand(4, 8, 16, 16),), None
    yield "softmax", lambda x: torch.softmax(x, -1), lambda: (rand(64, 256),), True
    yield "sum", lambda x: x.sum(), lambda: (rand(64, 256),), None
    yield "two sums", lambda x: (x.sum(0), x.mean(1), x.var()), lambda: (rand(64, 256),), None
    yield "maximum", lambda x: x.max(1), lambda: (rand(64, 256),), None
    yield "attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda: tuple(
        rand(2, 4, 64, 64, dtype=half) for _ in range(3)), True
    yield "encoder layer", encoder, lambda: (rand(2, 32, 256, dtype=half),), True
    yield "llama block", block, lambda: (rand(2, 32, 256, dtype=half), torch.arange(32, device="cuda")), None
    yield "embedding", table, lambda: (torch.randint(1000, (4, 32), device="cuda"),), True
    yield "convolution", conv, lambda: (rand(4, 8, 32, 32),), None
    yield "convolution, channels last", conv, lambda: (
        rand(4, 8, 32, 32).to(memory_format=torch.channels_last),), None
    yield "gru", gru, lambda: (rand(16, 4, 64),), None
    yield "cat", lambda x, y: torch.cat((x, y), 1) * 2, lambda: (rand(64, 100), rand(64, 28)), None
    yield "stack", lambda x, y: torch.stack((x, y)), lambda: (rand(64, 100), rand(64, 100)), None
    yield "index", lambda x, i: x[i] + 1, lambda: (rand(64, 100), torch.randint(64, (10,), device="cuda")), None
    yield "scatter", lambda x, i: torch.zeros_like(x).scatter_add_(1, i, x), lambda: (
        torch.randint(100, (64, 100), device="cuda"), torch.randint(100, (64, 100), device="cuda")), None
    yield "topk", lambda x: x.topk(5)[0], lambda: (rand(64, 100),), None
    yield "sort", lambda x: x.sort()[0], lambda: (rand(64, 100),), None
    yield "cumsum", lambda x: x.cumsum(1), lambda: (rand(64, 100),), None
    yield "slices", lambda x: x[:, 10:20] * x[:, 20:30] + x[5:6, :10], lambda: (rand(64, 100),), None
    yield "in place", lambda x, y: y.add_(x).mul_(2).sum(), lambda: (rand(1000), rand(1000)), None
    yield "float", lambda x, a: x * a, lambda: (rand(1000), 0.1 + torch.rand(()).item()), True
    yield "floats", lambda x, a, b: torch.add(x, x, alpha=a) * b, lambda: (
        rand(1000), 0.1 + torch.rand(()).item(), 2 + torch.rand(()).item()), None
    yield "half and float", lambda x, a: x * a, lambda: (rand(1000, dtype=half), 0.1 + torch.rand(()).item()), None
    yield "clamp", lambda x, a: x.clamp(-a, a), lambda: (rand(1000), 0.1 + torch.rand(()).item()), None
    yield "inverse", lambda x, a: x / a, lambda: (rand(1000), 0.1 + torch.rand(()).item()), None
    yield "lists", lambda xs: xs[0] + xs[1][0], lambda: ([rand(1000), (rand(1000),)],), None
    yield "foreach", lambda xs, ys: torch._foreach_add(xs, ys), lambda: (
        [rand(100) for _ in range(10)], [rand(100) for _ in range(10)]), None
    yield "dropout", lambda x: F.dropout(x, 0.3), lambda: (rand(1000),), None
    yield "sixty-four", lambda *xs: torch.stack([x.sum() for x in xs]), lambda: tuple(
        rand(128) for _ in range(64)), None
    yield "a hundred", lambda *xs: sum(x.sum() for x in xs), lambda: tuple(rand(128) for _ in range(100)), None


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class MovingTest(unittest.TestCase):
    RUNS = 14

    def check(self, cache, name, fn, make, kept):
        """Runs with new arguments each time, and compares with direct calls. Returns the last run that captured."""
        last = 0
        with torch.no_grad():
            for i in range(self.RUNS):
                given = make()
                kept.append(given)  # so that the next ones lie elsewhere
                copies = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, given)
                torch.manual_seed(100 + i)
                wanted = fn(*copies)
                torch.manual_seed(100 + i)
                before = cache.stats()["captures"]
                found = cache.run(name, fn, *given)
                if cache.stats()["captures"] != before:
                    last = i
                for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted)):
                    self.assertTrue(torch.equal(a, b), f"{name}, run {i}")
                for a, b in zip(torch.utils._pytree.tree_leaves(given), torch.utils._pytree.tree_leaves(copies)):
                    self.assertTrue(not isinstance(a, torch.Tensor) or torch.equal(a, b), f"{name}, run {i}: arguments")
        return last

    def test_each_run_computes_what_a_direct_call_does(self):
        for pools in ("shared", "one_per_key"):
            cache = graphcache_torch.Cache(capture_after=0, pools=pools)
            kept = []
            for name, fn, make, is_found in cases():
                with self.subTest(name, pools=pools):
                    last = self.check(cache, name, fn, make, kept)
                    if is_found and pools == "shared":  # With pools of their own, tensors count by their memory.
                        self.assertLess(last, 6, self.explain(cache, name, fn, kept))

    @staticmethod
    def explain(cache, name, fn, kept):
        with torch.no_grad():
            return cache.explain(name, fn, *kept[-1])

    def test_memory_is_that_of_one(self):
        cache = graphcache_torch.Cache()
        layer = torch.nn.Linear(1024, 1024, device="cuda")
        with torch.no_grad():
            first = [rand(1024, 1024) for _ in range(8)]
            for x in first:
                cache.run("layer", layer, x)
            torch.cuda.synchronize()
            before, captures = torch.cuda.memory_allocated(), cache.stats()["captures"]
            kept = []
            for i in range(200):
                kept.append(rand(1024, 1024))
                if len(kept) > 5:
                    kept.pop(0)
                x = kept[-1]
                out = cache.run("layer", layer, x)
                if i % 20 == 0:
                    self.assertTrue(torch.equal(out, layer(x)))
            kept.clear()
            del x, out
            torch.cuda.synchronize()
        self.assertEqual(cache.stats()["captures"], captures)
        self.assertLess(torch.cuda.memory_allocated() - before, 20 << 20)

    def test_arguments_are_not_kept(self):
        cache = graphcache_torch.Cache(capture_after=0)
        gone = []
        for _ in range(6):
            x, y = rand(1000), rand(1000)
            gone += [weakref.ref(x), weakref.ref(y)]
            cache.run("double", torch.neg, x)
            cache.run("list", lambda ys: ys[0] * 2, [y])
        del x, y
        gc.collect()
        self.assertEqual([ref() for ref in gone], [None] * 12)

    def test_what_never_moves_counts_by_its_memory(self):
        cache = graphcache_torch.Cache(capture_after=0)
        x = rand(1000)
        for _ in range(5):
            cache.run("double", torch.neg, x)
        stats = cache.stats()
        self.assertEqual((stats["captures"], stats["replayed"]), (1, 4))

    def test_what_fn_returns_of_its_arguments(self):
        fns = {
            "itself": lambda x, y: x.add_(y),
            "a view": lambda x, y: x.add_(y)[10:20],
            "both": lambda x, y: (x.mul_(2), y, x + y),
        }
        for name, fn in fns.items():
            cache = graphcache_torch.Cache(capture_after=0)
            for i in range(8):
                x, y = rand(1000), rand(1000)
                a, b = x.clone(), y.clone()
                for found, wanted in zip(torch.utils._pytree.tree_leaves(cache.run(name, fn, x, y)),
                                         torch.utils._pytree.tree_leaves(fn(a, b))):
                    self.assertTrue(torch.equal(found, wanted), (name, i))
                self.assertTrue(torch.equal(x, a), (name, i))

    def test_floats_that_fn_returns(self):
        cache = graphcache_torch.Cache(capture_after=0)
        kept = rand(1000)
        for i in range(8):
            number = 0.1 + 0.7 * i
            for name, x in (("moves", rand(1000)), ("stays", kept)):
                scaled, same = cache.run(name, lambda x, a: (x * a, {"scale": a}), x, number)
                self.assertEqual(same["scale"], number, (name, i))
                self.assertTrue(torch.equal(scaled, x * number), (name, i))

    def test_backward_outside_of_fn(self):
        layer = torch.nn.Linear(64, 64, device="cuda")
        cache = graphcache_torch.Cache(capture_after=0)
        kept = []  # a replay for the address of an earlier one would return its graph of gradients
        for i in range(8):
            x = rand(16, 64)
            kept.append(x)
            gradients = []
            for run in (lambda: layer(x).sum(), lambda: cache.run("layer", lambda x: layer(x).sum(), x)):
                layer.zero_grad(set_to_none=True)
                run().backward()
                gradients.append(layer.weight.grad.clone())
            self.assertTrue(torch.equal(*gradients), i)

    def test_training_steps_with_moving_batches(self):
        def train(run):
            torch.manual_seed(5)
            model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
            optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2, device="cuda"), capturable=True)

            def step(x, y):
                optimizer.zero_grad(set_to_none=False)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                return loss.detach()

            losses = []
            kept = []
            for i in range(20):
                torch.manual_seed(1000 + i)
                kept.append((rand(16, 32), torch.randint(8, (16,), device="cuda")))
                losses.append(run(step, *kept[-1]).clone())
            return torch.stack(losses), [p.detach().clone() for p in model.parameters()]

        cache = graphcache_torch.Cache()
        wanted = train(lambda step, *given: step(*given))
        found = train(lambda step, *given: cache.run("step", step, *given))
        self.assertTrue(torch.equal(wanted[0], found[0]), (wanted[0], found[0]))
        for a, b in zip(wanted[1], found[1]):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(cache.stats()["failed"], 0)

    def test_what_fn_leaves_elsewhere(self):
        @dataclasses.dataclass
        class Holder:
            left: object = None

        for pools in ("shared", "one_per_key"):
            for leave in (lambda x: x * 2, lambda x: x, lambda x: x[1:], lambda x: [x]):
                holder = Holder()

                def fn(x):
                    holder.left = leave(x)
                    return x + 1

                cache = graphcache_torch.Cache(capture_after=0, pools=pools)
                kept = []  # A replay for the address of an earlier one would not call fn.
                for i in range(8):
                    x = rand(1000)
                    kept.append(x)
                    self.assertTrue(torch.equal(cache.run("leaves", fn, x), x + 1), (pools, i))
                    left = holder.left[0] if isinstance(holder.left, list) else holder.left
                    wanted = leave(x)
                    self.assertTrue(torch.equal(left, wanted[0] if isinstance(wanted, list) else wanted), (pools, i))

    def test_what_fn_keeps_in_place_of_another_argument(self):
        box = {"last": rand(1000)}

        def fn(x, last):
            box["last"] = x
            return x - last

        cache = graphcache_torch.Cache()
        kept = [box["last"]]  # a replay for the address of an earlier one would not call fn
        for i in range(12):
            kept.append(rand(1000))
            found = cache.run("keeps", fn, kept[-1], box["last"])
            self.assertTrue(torch.equal(found, kept[-1] - kept[-2]), i)
            self.assertIs(box["last"], kept[-1], i)

    def test_a_result_that_is_the_next_argument(self):
        weights = rand(64, 64)
        fns = (lambda h: torch.tanh(h @ weights), lambda h: torch.cos(h.sin()) + h)
        for pools in ("shared", "one_per_key"):
            for fn in fns:
                cache = graphcache_torch.Cache(capture_after=0, pools=pools)
                with torch.no_grad():
                    found = wanted = rand(64, 64)
                    for i in range(12):
                        found, wanted = cache.run("step", fn, found), fn(wanted)
                        self.assertTrue(torch.equal(found, wanted), (pools, i))

    def test_runs_inside_another_run(self):
        cache = graphcache_torch.Cache(capture_after=0)
        inner = lambda x: torch.sin(x) * 2
        outer = lambda x: cache.run("inner", inner, x + 1) * 3
        for i in range(8):
            x = rand(1000)
            self.assertTrue(torch.equal(cache.run("outer", outer, x), inner(x + 1) * 3), i)
        self.assertEqual(cache.stats()["eager"], 0)

    def test_swapped_buffers_and_views_of_one_storage(self):
        cache = graphcache_torch.Cache(capture_after=0)
        a, b = rand(4, 1000), rand(4, 1000)
        for i in range(10):
            wanted = a * 2 + b[1:2]
            self.assertTrue(torch.equal(cache.run("swap", lambda x, y: x * 2 + y[1:2], a, b), wanted), i)
            a, b = b, a
        for i in range(12):
            whole = rand(3 * 1024)
            q, k, v = whole.chunk(3)
            if i > 7:
                q, k = k, q
            self.assertTrue(torch.equal(cache.run("views", lambda q, k, v: q * 3 + k * v, q, k, v), q * 3 + k * v), i)

    def test_alignments(self):
        cache = graphcache_torch.Cache(capture_after=0)
        whole = rand(10000)
        for i in range(60):
            x = whole[i % 7:i % 7 + 1000]
            self.assertTrue(torch.equal(cache.run("sum", lambda x: x * 2, x), x * 2), i)

    def test_keys_of_one_cache_share_memory(self):
        cache = graphcache_torch.Cache(capture_after=0)
        for i in range(10):
            for size in (100, 1000, 10000):
                x = rand(size)
                self.assertTrue(torch.equal(cache.run("f", lambda x: torch.sin(x * 2).roll(1) - x, x),
                                            torch.sin(x * 2).roll(1) - x), (i, size))
        self.assertLessEqual(cache.stats()["captures"], 12)

    def test_warm_learns(self):
        cache = graphcache_torch.Cache()
        others = [rand(1000) for _ in range(6)]
        for x in others:
            cache.warm("double", torch.neg, x)
        for _ in range(4):
            x = rand(1000)
            self.assertTrue(torch.equal(cache.run("double", torch.neg, x), -x))
        self.assertEqual(cache.stats()["patched"] + cache.stats()["replayed"], 4, cache.report())


def show():
    """Which functions are captured how often, and the first value that hinders them."""
    for pools in ("shared", "one_per_key"):
        cache, kept, test = graphcache_torch.Cache(capture_after=0, pools=pools), [], MovingTest()
        for name, fn, make, _ in cases():
            before = cache.stats()["captures"]
            last = test.check(cache, name, fn, make, kept)
            captures = cache.stats()["captures"] - before
            print(f"{pools:12} {name:28} {captures:3} captures, the last in run {last:2}", flush=True)
            if last >= 6:
                why = test.explain(cache, name, fn, kept).splitlines()
                print("   ", next((line[:200] for line in why if " is derived" in line), why[0]))


def measure():
    """Host's time of a hit, of CUDAGraph.replay()."""
    for tensors in (1, 8, 64, 256):
        held = [rand(1024) for _ in range(tensors)]
        fn = lambda *xs: xs[0] + xs[-1]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fn(*held)
        cache = graphcache_torch.Cache(capture_after=0)
        others = [[rand(1024) for _ in range(tensors)] for _ in range(4)]
        for _ in range(3):
            for other in others:
                cache.run("moving", fn, *other)
        fixed = graphcache_torch.Cache(capture_after=0)
        of_list = lambda xs: xs[0] + xs[-1]
        ways = {
            "replay": lambda i: graph.replay(),
            "kept": lambda i: fixed.run("kept", fn, *held),
            "kept, in a list": lambda i: fixed.run("list", of_list, held),
            "moving, alike": lambda i: cache.run("moving", fn, *others[0]),
            "moving": lambda i: cache.run("moving", fn, *others[i % 4]),
        }
        best = {name: [] for name in ways}
        for _ in range(15):
            for name, way in ways.items():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for i in range(200):
                    way(i)
                best[name].append((time.perf_counter() - begin) / 200 * 1e6)
                torch.cuda.synchronize()
        median = {name: sorted(times)[len(times) // 2] for name, times in best.items()}
        print(tensors, "tensors:", {name: f"{us:.2f} us, {us / median['replay']:.2f}" for name, us in median.items()})


if __name__ == "__main__":
    show()
    measure()
