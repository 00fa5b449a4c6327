"""Situations of programs on PyTorch, and what the module does in them. Needs a GPU.

  a cache is collected inside another run's fn              destroyed after the capture; was an abort or a deadlock
  the same in a capture of PyTorch, or by another thread    the same
  keys are erased inside fn                                 right
  expandable segments                                       right; was a segmentation fault
  synchronize, copies to the host, item, nonzero in fn      a direct run; were segmentation faults
  a thread or a process ends after a broken capture         right; was a crash at its end
  a forked child drops its copy, or runs                    nothing, or an error; was a crash
  a child that is forked before CUDA is used                right
  a daemon thread at exit                                   it sleeps; was an abort
  a cache is made inside fn; its runs are inside fn         right
  caches that are gone                                      no memory stays; 32 MiB of each had stayed
  two streams at once, products with a workspace            right; half of the results had been wrong
  direct products on another stream meanwhile               right
  a graph of PyTorch's own that is reset                     right
  runs, and the end of caches, inside use_mem_pool          right; was an abort. Before 2.10, runs capture nothing there
  results in tuples, lists, dicts, dataclasses              copied, in a graph
  results in sets, attributes; tensors left                 right, with a pool of the key's own; had been overwritten
    elsewhere; what backward needs later
  results that are arguments inside lists                   the arguments; had been copies
  an object at the address of one that is gone              another key; its first run had been captured
  graphs that other threads drop behind their launch        right; was an error, though the work was enqueued
"""
import dataclasses
import gc
import sys
import threading
import types
import unittest
import warnings
import weakref

import torch

import graphcache_torch
from test_torch import ON_GPU, chain, new_cache, run_python

PROGRAM = """import gc, os, sys, threading, time
import torch, graphcache_torch
x = torch.ones(1000, device="cuda")
def chain(x):
    y = x * 3 + 1
    return torch.sin(y) * x - y
def new_cache(**options):
    return graphcache_torch.Cache(capture_after=0, **options)
"""


def reserved():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    note: str = ""


class Holder:
    """An object that is neither a container nor a tensor."""

    def __init__(self, hidden=None):
        self.hidden = hidden


def sum_of_products(x):
    """Its temporaries are where later keys' tensors would be."""
    return (x * 2).sum() + (x * x).sum()


class Situation(unittest.TestCase):
    def equal(self, a, b):
        self.assertTrue(torch.equal(a, b), (a, b))


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class CollectedCacheTest(Situation):
    def cache_in_a_cycle(self, pools):
        holder = Holder()
        holder.cache = new_cache(pools=pools)
        holder.itself = holder
        x = torch.rand(1000, device="cuda")
        for i in range(3):
            holder.cache.run(("chain", i), chain, x)
        return weakref.ref(holder.cache)

    def test_inside_another_runs_fn(self):
        x = torch.rand(1000, device="cuda")
        for pools in ("shared", "one_per_key"):
            for mine in ("shared", "one_per_key"):
                before = reserved()
                cache = new_cache(pools=mine)
                dead = self.cache_in_a_cycle(pools)

                def collects(x):
                    y = x * 2
                    gc.collect()
                    return chain(y)

                for _ in range(3):
                    x.add_(1)
                    self.equal(cache.run("collects", collects, x), chain(x * 2))
                self.assertIsNone(dead())
                self.assertEqual(cache.stats()["eager"], 0)
                del cache
                self.assertEqual(reserved(), before)

    def test_keys_erased_inside_a_runs_fn(self):
        x = torch.rand(1000, device="cuda")
        for pools in ("shared", "one_per_key"):
            cache, other = new_cache(pools=pools), new_cache(pools=pools)
            other.run("mine", chain, x)
            cache.run("mine", chain, x)

            def erases(x):
                cache.erase("mine", chain, x)
                other.clear()
                return chain(x)

            self.equal(cache.run("erases", erases, x), chain(x))
            self.equal(cache.run("mine", chain, x), chain(x))
            self.equal(other.run("mine", chain, x), chain(x))

    def test_keys_erased_inside_a_capture_of_pytorch(self):
        x = torch.rand(1000, device="cuda")
        cache = new_cache(pools="one_per_key")
        cache.run("chain", chain, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            cache.erase("chain", chain, x)
            z = chain(y)
        graph.replay()
        self.equal(z, chain(x * 2))
        self.equal(cache.run("chain", chain, x), chain(x))

    def test_a_cache_made_inside_a_runs_fn(self):
        x = torch.rand(1000, device="cuda")
        for pools in ("shared", "one_per_key"):
            cache = new_cache()

            def makes(x):
                return new_cache(pools=pools).run("chain", chain, x)

            for _ in range(3):
                self.equal(cache.run("makes", makes, x), chain(x))
            self.equal(cache.run("chain", chain, x), chain(x))

    def test_a_graphed_function_makes_its_cache_during_a_capture(self):
        inner, other = graphcache_torch.graphed(lambda x: x * 2), graphcache_torch.graphed(lambda x: x * 3)
        x = torch.rand(1000, device="cuda")
        threads = []

        def fn(x):
            threads.append(threading.Thread(target=other, args=(x,), daemon=True))
            threads[-1].start()
            threads[-1].join(0.2)  # it waits until the capture is over
            return inner(x)

        found = []
        run = threading.Thread(target=lambda: found.append(new_cache().run("f", fn, x)), daemon=True)
        run.start()
        run.join(20)
        self.assertFalse(run.is_alive())
        for thread in threads:
            thread.join(20)
            self.assertFalse(thread.is_alive())
        self.equal(found[0], x * 2)
        self.equal(other(x), x * 3)

    def test_inside_a_capture_of_pytorch(self):
        x = torch.rand(1000, device="cuda")
        self.cache_in_a_cycle("one_per_key")
        holder = [new_cache()]
        holder[0].run("chain", chain, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            holder.clear()
            z = chain(y)
        graph.replay()
        self.equal(z, chain(x * 2))
        self.equal(new_cache().run("chain", chain, x), chain(x))

    def test_by_another_thread_during_a_capture(self):
        x = torch.rand(1000, device="cuda")
        for pools in ("shared", "one_per_key"):
            cache, other = new_cache(), [new_cache(pools=pools)]
            other[0].run("chain", chain, x)

            def drops(x):
                thread = threading.Thread(target=other.clear)
                thread.start()
                thread.join(0.2)  # it may wait until the capture is over
                threads.append(thread)
                return chain(x)

            threads = []
            self.equal(cache.run("drops", drops, x), chain(x))
            threads[0].join(10)
            self.assertFalse(threads[0].is_alive())
            self.assertEqual(cache.stats()["eager"], 0)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class ProcessTest(Situation):
    def test_expandable_segments(self):
        program = PROGRAM + """
for pools in ("shared", "one_per_key"):
    cache = new_cache(pools=pools)
    big = torch.rand(1 << 22, device="cuda")
    for turn in range(3):
        big.add_(1)
        for i in range(4):
            assert torch.equal(cache.run(("chain", i), chain, big[i:]), chain(big[i:]))
    assert cache.stats()["replayed"] == 8, cache.stats()
    assert cache.erase(("chain", 0), chain, big)
    torch.cuda.empty_cache()
    assert torch.equal(cache.run(("chain", 1), chain, big[1:]), chain(big[1:]))
    del cache
    gc.collect()
    torch.cuda.empty_cache()
print("right")"""
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            self.assertEqual(run_python(program, **{name: "expandable_segments:True"}), "right")

    def test_threads_and_processes_that_end_after_captures_without_a_graph(self):
        program = PROGRAM + """
cache = new_cache()
def empty(x):
    return None
def breaks(x):
    torch.cuda.synchronize()
    return x * 2
def fails(x):
    x * 2
    raise LookupError("mine")
def work():
    cache.run("empty", empty, x)
    assert torch.equal(cache.run("breaks", breaks, x), x * 2)
    try:
        cache.run("fails", fails, x)
    except LookupError:
        print("raised")
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
work()"""
        self.assertEqual(run_python(program), "\n".join(["raised"] * 4))

    def test_a_forked_child(self):
        program = PROGRAM + """
cache = new_cache()
cache.run("chain", chain, x)
child = os.fork()
if child == 0:
    try:
        cache.run("chain", chain, x)
    except RuntimeError as why:
        print(why, flush=True)
    del cache
    gc.collect()
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
with cache:
    child = os.fork()
    if child == 0:
        for verb in ("clear", "stats", "advise", "report"):
            try:
                getattr(cache, verb)()
            except RuntimeError as why:
                assert "before this process was forked" in str(why)
            else:
                raise AssertionError(verb)
        assert "another process" in repr(cache)
        sys.exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
assert torch.equal(cache.run("chain", chain, x), chain(x))
print("right")"""
        printed = run_python(program)
        self.assertIn("before this process was forked", printed)
        self.assertTrue(printed.endswith("right"), printed)

    def test_a_child_that_is_forked_before_cuda_is_used(self):
        program = """import os, graphcache_torch, torch
if os.fork() == 0:
    x = torch.ones(3, device="cuda")
    cache = graphcache_torch.Cache(capture_after=0)
    print([cache.run("double", lambda x: x * 2, x).sum().item() for _ in range(2)], flush=True)
else:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0"""
        self.assertEqual(run_python(program), "[6.0, 6.0]")

    def test_a_mode_that_waits_in_a_replay_that_draws(self):
        program = PROGRAM + """
from torch.utils._python_dispatch import TorchDispatchMode
cache, other = graphcache_torch.Cache(), x * 2
threads, found = [], []
def draw(x):
    return x + torch.rand_like(x)
class Waits(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.fill_.Scalar and not threads:
            threads.append(threading.Thread(target=lambda: found.append(cache.run("chain", chain, other))))
            threads[0].start()
            threads[0].join()
        return func(*args, **(kwargs or {}))
for _ in range(3):
    cache.run("draw", draw, x)
cache.run("chain", chain, x)
with Waits():
    cache.run("draw", draw, x)
assert torch.equal(found[0], chain(other))
print("right")"""
        self.assertEqual(run_python(program), "right")

    def test_a_daemon_thread_at_exit(self):
        """Operators of PyTorch end the process themselves there, so fn is called rarely, and waits in Python."""
        for pools in ("shared", "one_per_key"):
            for run in ("cache.run('chain', chain, x)", "cache.run(('waits', i := i + 1), waits, x)"):
                program = PROGRAM + f"""
cache = new_cache(pools={pools!r})
def waits(x):
    x.add_(1)
    while True:
        time.sleep(0.001)
def work():
    i = 0
    while True:
        {run}
threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
print("end")"""
                for _ in range(4):
                    self.assertEqual(run_python(program), "end")


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class WaitsInsideFnTest(Situation):
    def test_the_run_is_direct_and_right(self):
        x = torch.rand(1000, device="cuda")
        pinned = torch.empty(1000, pin_memory=True)

        def to_pageable(x):
            y = x * 2
            torch.empty(1000).copy_(y, non_blocking=True)
            return y

        def to_pinned(x):
            y = x * 2
            pinned.copy_(y)
            return y

        waits = {
            "synchronize": lambda x: (torch.cuda.synchronize(), x * 2)[1],
            "stream": lambda x: (torch.cuda.current_stream().synchronize(), x * 2)[1],
            "cpu": lambda x: x * 2 + float((x * 2).cpu().sum()) * 0,
            "item": lambda x: x * 2 + x.sum().item() * 0,
            "tolist": lambda x: x * 2 + (x[:2].tolist()[0]) * 0,
            "numpy": lambda x: x * 2 + float(x.cpu().numpy()[0]) * 0,
            "nonzero": lambda x: (x.nonzero(), x * 2)[1],
            "pageable": to_pageable,
            "pinned": to_pinned,
            "from the host": lambda x: x * torch.full((1000,), 2.0).to("cuda"),
            "text": lambda x: (str(x), x * 2)[1],
        }
        cache = new_cache()
        for name, fn in waits.items():
            for _ in range(3):
                x.add_(1)
                self.equal(cache.run(name, fn, x), x * 2)
            self.equal(cache.run(("chain", name), chain, x), chain(x))
        self.assertEqual(cache.stats()["failed"], 0)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class WorkspaceTest(Situation):
    # Products whose sums cuBLAS splits, with partial sums in the workspace.
    @staticmethod
    def product(a, b):
        return a @ b

    @staticmethod
    def factors(i):
        torch.manual_seed(i)
        return torch.rand(64, 1 << 15, device="cuda") - 0.5, torch.rand(1 << 15, 64, device="cuda") - 0.5

    def test_caches_that_are_gone_leave_none(self):
        def use(pools):
            cache = new_cache(pools=pools)
            for i in range(2):
                a, b = self.factors(i)
                cache.run(("product", i), self.product, a, b)
                cache.run(("product", i), self.product, a, b)

        a, b = self.factors(0)
        self.product(a, b)
        for pools in ("shared", "one_per_key"):
            use(pools)
            before = reserved()
            for _ in range(3):
                use(pools)
            self.assertEqual(reserved(), before)

    def test_two_streams_at_once(self):
        expected, factors = [], [self.factors(i) for i in range(2)]
        for a, b in factors:
            expected.append(self.product(a, b))
        for where in ("one stream", "streams of their own", "side streams"):
            cache = new_cache(pools="one_per_key")
            streams = [torch.cuda.Stream(), torch.cuda.Stream()]
            inner = torch.cuda.Stream()

            def on_side_stream(a, b):
                inner.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(inner):
                    c = a @ b
                torch.cuda.current_stream().wait_stream(inner)
                return c

            fn = on_side_stream if where == "side streams" else self.product
            results = [None, None]
            for i, (a, b) in enumerate(factors):
                with torch.cuda.stream(streams[i] if where == "streams of their own" else streams[0]):
                    results[i] = cache.run(("product", i), fn, a, b)
            torch.cuda.synchronize()
            wrong = 0
            for _ in range(400):
                for i, (a, b) in enumerate(factors):
                    with torch.cuda.stream(streams[i]):
                        cache.run(("product", i), fn, a, b)
                torch.cuda.synchronize()
                wrong += sum(not torch.allclose(r, e, rtol=1e-4, atol=1e-3) for r, e in zip(results, expected))
            self.assertEqual(wrong, 0, where)
            self.assertEqual(cache.stats()["captures"], 2)

    def test_a_run_beside_direct_calls_on_another_stream(self):
        a, b = self.factors(3)
        c, d = self.factors(4)
        expected, other = self.product(a, b), self.product(c, d)
        cache, stream = new_cache(), torch.cuda.Stream()
        result = cache.run("product", self.product, a, b)
        for _ in range(200):
            cache.run("product", self.product, a, b)
            with torch.cuda.stream(stream):
                direct = self.product(c, d)
            torch.cuda.synchronize()
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(direct, other, rtol=1e-4, atol=1e-3)

    def test_a_graph_of_torch_that_is_reset(self):
        cache = new_cache()
        x = torch.rand(1 << 23, device="cuda")  # each temporary is a segment of the allocator
        generator = torch.Generator("cuda")
        generator.manual_seed(3)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            result = chain(x) + torch.rand(1 << 23, device="cuda", generator=generator) * 0
        make = lambda: (graph, result)
        cache.run_graph("chain", make)
        graph.reset()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 23,), float(i), device="cuda") for i in range(16)]
        for _ in range(3):
            x.add_(1)
            self.equal(cache.run_graph("chain", make), chain(x))
        for i, other in enumerate(others):
            self.assertEqual((other - i).abs().max().item(), 0)
        self.assertTrue(cache.erase("chain", make))


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class PoolOfTheProgramTest(Situation):
    def test_runs_inside_it(self):
        x = torch.rand(1 << 12, device="cuda")
        for options in ({}, {"pools": "one_per_key"}, {"copy_inputs": True}):
            cache, pool, kept = new_cache(**options), torch.cuda.MemPool(), []
            for i in range(8):
                with torch.cuda.use_mem_pool(pool):
                    y = x + i
                    self.equal(cache.run("sum", sum_of_products, y), sum_of_products(y))
                    kept += [torch.full_like(x, j) for j in range(4)]
                for j, one in enumerate(kept):
                    self.equal(one, torch.full_like(x, j % 4))

    def test_the_end_of_keys_and_caches_inside_it(self):
        x = torch.rand(1000, device="cuda")
        pool, before = torch.cuda.MemPool(), reserved()
        for pools in ("shared", "one_per_key"):
            cache = new_cache(pools=pools)
            for i in range(3):
                cache.run(("chain", i), chain, x)
            torch.cuda.synchronize()
            with torch.cuda.use_mem_pool(pool):
                cache.clear()
                del cache
                gc.collect()
        self.assertEqual(reserved(), before)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class RunInsideFnTest(Situation):
    def test_of_another_cache(self):
        x = torch.rand(1 << 20, device="cuda")
        for outer_pools in ("shared", "one_per_key"):
            for inner_pools in ("shared", "one_per_key"):
                outer, inner = new_cache(pools=outer_pools), new_cache(pools=inner_pools)
                fn = lambda x: inner.run("inner", chain, x) * 2
                for _ in range(3):
                    x.add_(1)
                    self.equal(outer.run("outer", fn, x), chain(x) * 2)
                self.equal(inner.run("inner", chain, x), chain(x))
                self.assertEqual((outer.stats()["eager"], outer.stats()["captures"]), (0, 1))

    def test_what_follows_it_is_temporary(self):
        cache = new_cache()
        x = torch.rand(1 << 20, device="cuda")

        def outer(x):
            y = cache.run("inner", chain, x)
            return (y * 2).sum() + (y * 3).sum()

        cache.run("outer", outer, x)
        for _ in range(3):
            x.add_(1)
            kept = cache.run("kept", lambda x: x * 3, x)
            cache.run("outer", outer, x)
            self.equal(kept, x * 3)

    def test_in_a_key_that_is_captured_again(self):
        cache, other = new_cache(), new_cache()
        x = torch.rand(1 << 20, device="cuda")
        cache.run("inner", chain, x)
        other.run("inner", chain, x)
        cache.run("temporaries", sum_of_products, x)
        outer = lambda x: Holder(cache.run("inner", chain, x) + other.run("inner", chain, x))
        for _ in range(4):
            x.add_(1)
            result = cache.run("outer", outer, x)
            kept = chain(x) + chain(x)
            cache.run("temporaries", sum_of_products, x)
            self.equal(result.hidden, kept)
            self.assertTrue(cache.contains("inner", chain, x) and other.contains("inner", chain, x))
        self.assertEqual((cache.stats()["captures"], cache.stats()["capture_failures"]), (3, 1))


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class ResultsTest(Situation):
    def check(self, fn, tensor_of):
        """The tensor that a run leaves holds x * 3 until the next run of its key."""
        x = torch.rand(1 << 20, device="cuda")
        cache = new_cache()
        cache.run("temporaries", sum_of_products, x)
        for i in range(5):
            x.add_(1)
            result = cache.run("fn", fn, x)
            kept = x * 3
            cache.run("temporaries", sum_of_products, x)
            cache.run(("more", i), sum_of_products, x)
            self.equal(tensor_of(result), kept)
        self.assertGreater(cache.stats()["replayed"], 5)
        return cache

    def test_in_containers(self):
        for fn, tensor_of in (
            (lambda x: x * 3, lambda r: r),
            (lambda x: (None, [x * 3]), lambda r: r[1][0]),
            (lambda x: {"a": {"b": x * 3}}, lambda r: r["a"]["b"]),
        ):
            self.assertEqual(self.check(fn, tensor_of).stats()["eager"], 0)

    def test_in_other_objects(self):
        for fn, tensor_of in (
            (lambda x: {x * 3}, lambda r: next(iter(r))),
            (lambda x: frozenset([(x * 3, 1)]), lambda r: next(iter(r))[0]),
            (lambda x: (Holder(x * 3), x), lambda r: r[0].hidden),
            (lambda x: Holder(x * 3), lambda r: r.hidden),
        ):
            cache = self.check(fn, tensor_of)
            self.assertEqual((cache.stats()["eager"], cache.stats()["capture_failures"]), (1, 1))

    def test_left_elsewhere(self):
        holder, found = Holder(), []

        def leaves(x):
            holder.hidden = x * 3

        def appends(x):
            found.append(x * 3)

        self.check(leaves, lambda r: holder.hidden)
        self.check(appends, lambda r: found[-1])

    def test_a_warmed_key(self):
        x = torch.rand(1 << 20, device="cuda")
        cache = new_cache()
        cache.run("temporaries", sum_of_products, x)
        fn = lambda x: Output(x * 3)
        cache.warm("fn", fn, x)
        result = cache.run("fn", fn, x)
        kept = x * 3
        cache.run("temporaries", sum_of_products, x)
        self.equal(result.hidden, kept)
        self.assertEqual(cache.stats()["eager"], 0)

    def test_what_backward_needs_later(self):
        x = torch.rand(1 << 20, device="cuda", requires_grad=True)
        other = torch.rand(1 << 20, device="cuda")
        cache = new_cache()
        cache.run("temporaries", sum_of_products, other)
        for i in range(4):
            loss = cache.run("loss", lambda x: (torch.sin(x) * torch.cos(x)).sum(), x)
            cache.run("temporaries", sum_of_products, other)
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
            torch.testing.assert_close(gradient, torch.cos(2 * x.detach()), rtol=1e-4, atol=1e-4)

    def test_arguments_are_results_as_they_are(self):
        cache = new_cache()
        parameter = torch.zeros(10, device="cuda")
        for fn in (
            lambda xs: xs[0].add_(1),
            lambda xs: xs[1][0].add_(1)[:5],
            lambda xs: parameter,
        ):
            x, y = torch.zeros(10, device="cuda"), torch.zeros(10, device="cuda")
            for _ in range(3):
                result = cache.run("in place", fn, [x, (y,)])
                self.assertIn(result.data_ptr(), [x.data_ptr(), y.data_ptr(), parameter.data_ptr()])
            cache.clear()


class Masked:
    """Its first step makes what later ones need."""

    def __init__(self, value):
        self.value, self.mask = value, None

    def step(self, x):
        if self.mask is None:
            self.mask = torch.full_like(x, self.value)
        return x * self.mask


def resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


class LikeATensor:
    """An object with as much memory as a tensor's."""
    __slots__ = tuple(f"part{i}" for i in range(3)) + ("__dict__", "__weakref__")


def chain_of(x, _):
    return chain(x)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class AddressTest(Situation):
    def test_of_an_object_that_is_gone(self):
        x = torch.rand(1000, device="cuda")
        cache = new_cache(capture_after=1)
        for i in range(1, 20):
            self.equal(cache.run("step", Masked(i).step, x), x * i)
        stats = cache.stats()
        self.assertEqual((stats["eager"], stats["captures"], stats["capture_failures"]), (19, 0, 0))
        masked = Masked(20)
        for _ in range(3):
            self.equal(cache.run("step", masked.step, x), x * 20)
        stats = cache.stats()
        self.assertEqual((stats["eager"], stats["captures"], stats["replayed"]), (20, 1, 1))

    def test_functions_of_objects_that_are_gone_leave_a_warning_and_no_pins(self):
        x = torch.rand(10, device="cuda")
        cache = new_cache(capture_after=1)

        def run(n):
            for _ in range(n):
                masked = Masked(2)
                cache.run("step", masked.step, x)
                cache.pin("step", masked.step, x)
                del masked

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run(5000)
            before = resident_bytes()
            run(15_000)
        self.assertEqual([w.category for w in found], [UserWarning])
        self.assertLess(resident_bytes() - before, 4 << 20)

    def test_graphs_that_other_threads_drop_behind_their_launch(self):
        x = torch.rand(1000, device="cuda")
        cache, errors = new_cache(pools="one_per_key", max_templates=1, max_executables=1), []

        def work(number):
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for i in range(1500):
                        cache.run("k", chain_of, x, (i // 2 * 7 + number) % 50)
            except RuntimeError as error:
                errors.append(str(error))

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        self.assertEqual(errors, [])

    def test_of_a_tensor_of_the_cpu(self):
        x = torch.rand(10, device="cuda")
        for _ in range(50):
            cache, holder = new_cache(capture_after=1), types.SimpleNamespace(part=torch.ones(1))
            cache.run("step", chain_of, x, holder)
            address, holder.part = id(holder.part), None
            holder.part = LikeATensor()
            if id(holder.part) == address:
                break
        else:
            self.skipTest("no object got the address of a tensor")
        for _ in range(3):
            self.equal(cache.run("step", chain_of, x, holder), chain(x))
        self.assertEqual(cache.stats()["captures"], 1)

    def test_graphs_stay_when_many_keys_are_forgotten(self):
        x = torch.rand(10, device="cuda")
        cache = new_cache(capture_after=1, max_templates=8)
        masked = Masked(3)
        cache.warm("step", masked.step, x)
        for i in range(10_010):
            cache.run("other", chain_of, x, i)
        self.assertTrue(cache.contains("step", masked.step, x))
        captures = cache.stats()["captures"]
        self.equal(cache.run("step", masked.step, x), x * 3)
        self.assertEqual(cache.stats()["captures"], captures)


if __name__ == "__main__":
    unittest.main()
