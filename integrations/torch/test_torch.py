# The module graphcache_torch: python3 -m unittest test_torch. Most of it needs a GPU, and is skipped without one.
import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import unittest
import weakref

import torch

import graphcache_torch

ON_GPU = torch.cuda.is_available()


def run_python(program, **environment):
    """What a new process prints. It must end well, within two minutes."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **environment})
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stdout}\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def new_cache(**options):
    """A cache that captures in the first run of a key."""
    return graphcache_torch.Cache(**{"capture_after": 0, **options})


class ImportTest(unittest.TestCase):
    def test_it_may_be_imported_before_torch(self):
        self.assertEqual(run_python("import graphcache_torch as g; print(g.Cache.__module__)"), "graphcache_torch")


@unittest.skipIf(ON_GPU, "PyTorch has a GPU here")
class WithoutGpuTest(unittest.TestCase):
    def test_a_cache_says_what_is_missing(self):
        with self.assertRaisesRegex(RuntimeError, "finds no CUDA device"):
            graphcache_torch.Cache()


def chain(x, scale=3):
    """A few kernels with temporaries."""
    y = x * scale + 1
    z = torch.sin(y) * x
    return z.roll(1, 0) - y


def soon(cache, condition):
    """Erases until the condition holds: an erase waits up to 1 ms for a device that other processes may use."""
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        cache.erase("never run", chain, 0)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class TorchTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)
        chain(torch.ones(8, device="cuda"))  # initialises what the first call needs
        torch.cuda.synchronize()

    def equal(self, a, b):
        self.assertTrue(torch.equal(a, b), (a, b))

    # Caches

    def test_a_cache_may_be_what_uses_cuda_first(self):
        program = '''import graphcache_torch
cache = graphcache_torch.Cache()
import torch
x = torch.ones(3, device="cuda")
print([cache.run("double", lambda x: x * 2, x).tolist() for _ in range(3)], cache.stats()["replayed"])'''
        self.assertEqual(run_python(program), str([[2.0] * 3] * 3) + " 1")

    def test_an_allocator_without_pools_is_refused(self):
        program = '''import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
import graphcache_torch
try:
    graphcache_torch.Cache()
except RuntimeError as why:
    print(why)'''
        self.assertIn("cudaMallocAsync", run_python(program))

    def test_a_cache_is_cleared_at_the_end_of_with(self):
        x = torch.rand(10, device="cuda")
        with new_cache() as cache:
            cache.run("chain", chain, x)
            self.assertEqual(repr(cache), "<graphcache_torch.Cache of device 0: 1 graphs, 1 executables>")
        self.assertFalse(cache.contains("chain", chain, x))
        with self.assertRaisesRegex(LookupError, "mine"), cache:
            raise LookupError("mine")

    def test_a_cache_cannot_be_copied(self):
        cache = new_cache()
        for take in (pickle.dumps, copy.copy, copy.deepcopy):
            with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                take(cache)

    # Values

    def test_a_replay_computes_what_a_direct_call_does(self):
        cache = new_cache()
        x = torch.rand(1000, device="cuda")
        for i in range(5):
            x.fill_(i).add_(torch.arange(1000, device="cuda"))
            self.equal(cache.run("chain", chain, x), chain(x))
        stats = cache.stats()
        self.assertEqual((stats["instantiated"], stats["replayed"], stats["eager"]), (1, 4, 0))

    def test_results_are_the_same_tensors_with_new_contents(self):
        cache = new_cache()
        x = torch.ones(10, device="cuda")
        first, second = cache.run("two", lambda x: (x + 1, {"b": x * 2}), x), None
        x.fill_(5)
        fn = lambda x: (x + 1, {"b": x * 2})
        a = cache.run("two more", fn, x)
        x.fill_(6)
        b = cache.run("two more", fn, x)
        self.assertIs(a[0], b[0])
        self.assertIs(a[1]["b"], b[1]["b"])
        self.equal(b[0], torch.full((10,), 7.0, device="cuda"))
        self.equal(b[1]["b"], torch.full((10,), 12.0, device="cuda"))
        self.equal(first[0], torch.full((10,), 2.0, device="cuda"))

    def test_a_warmed_key_is_replayed_by_its_first_run(self):
        cache = new_cache()
        x = torch.rand(1000, device="cuda")
        before = x.clone()
        cache.warm("chain", chain, x)
        self.equal(x, before)
        for _ in range(2):
            x.add_(1)
            self.equal(cache.run("chain", chain, x), chain(x))
        self.assertEqual((cache.stats()["captures"], cache.stats()["replayed"]), (1, 2))

    def test_many_keys_on_few_executables(self):
        cache = new_cache(max_executables=2)
        inputs = [torch.rand(100 + i, device="cuda") for i in range(6)]
        for turn in range(4):
            for x in inputs:
                x.add_(turn)
                self.equal(cache.run("chain", chain, x), chain(x))
        self.assertEqual(cache.stats()["captures"], 6)
        self.assertLessEqual(cache.stats()["live_executables"], 2)

    def test_tensors_of_another_shape_are_another_key(self):
        cache = new_cache()
        x, y = torch.rand(64, device="cuda"), torch.rand(64, device="cuda")
        for t in (x, x[:32], x[::2], x.view(8, 8), x.view(torch.int32), x):
            self.equal(cache.run("double", lambda t: t + t, t), t + t)
        self.assertEqual(cache.stats()["captures"], 5)

    def test_what_fn_has_closed_over_is_part_of_the_key(self):
        cache = new_cache()
        x = torch.ones(16, device="cuda")
        counts = torch.ones(16, device="cuda", dtype=torch.int32)
        for scale in (0, 0.0):
            self.assertEqual(cache.run("typed", lambda x: x * scale, counts).dtype, (counts * scale).dtype)
        cache.clear()
        before = cache.stats()["captures"]
        for scale in (2, 3.5, 2, torch.full((16,), 9.0, device="cuda")):
            result = cache.run("scaled", lambda x: x * scale, x)
            self.equal(result, x * scale)
        self.assertEqual(cache.stats()["captures"] - before, 3)

    def test_methods_of_two_objects_are_two_keys(self):
        cache = new_cache()
        a, b = torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()
        x = torch.rand(4, 8, device="cuda")
        with torch.no_grad():
            for layer in (a, b, a, b):
                torch.testing.assert_close(cache.run("layer", layer, x), layer(x))
                torch.testing.assert_close(cache.run("forward", layer.forward, x), layer(x))
        self.assertEqual(cache.stats()["captures"], 4)

    def test_modes_of_pytorch_and_of_modules_are_part_of_the_key(self):
        cache = new_cache()
        layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
        x = torch.rand(4, 8, device="cuda")
        apply = lambda x: layer(x)
        with torch.no_grad():
            layer.train()
            trained = cache.run("layer", apply, x)
            layer.eval()
            torch.testing.assert_close(cache.run("layer", apply, x), layer(x))
            self.assertTrue((trained == 0).any())
            with torch.autocast("cuda", dtype=torch.bfloat16):
                self.assertEqual(cache.run("layer", apply, x).dtype, torch.bfloat16)
            self.assertEqual(cache.run("layer", apply, x).dtype, torch.float32)
            z = torch.rand(4, device="cuda", dtype=torch.complex64)
            for t in (z, z.conj()):
                self.equal(cache.run("imaginary", lambda t: t * 1j, t), t * 1j)
        self.assertEqual(cache.stats()["captures"], 5)

    def test_a_frozen_script_module_has_no_mode(self):
        cache = new_cache()
        frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(8, 8).cuda().eval()))
        self.assertFalse(hasattr(frozen, "training"))
        for _ in range(4):
            x = torch.rand(4, 8, device="cuda")
            torch.testing.assert_close(cache.run("frozen", frozen, x), frozen(x))

    def test_captures_in_one_autocast_follow_the_weights(self):
        cache = new_cache()
        layer = torch.nn.Linear(64, 64).cuda()
        x = torch.rand(32, 64, device="cuda")
        once, twice = lambda x: layer(x), lambda x: layer(x) * 2
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                a, b = cache.run("once", once, x), cache.run("twice", twice, x)
                self.equal(a, layer(x))
                self.equal(b, layer(x) * 2)
            with torch.no_grad():
                layer.weight.mul_(3)
        self.assertEqual(cache.stats()["captures"], 2)

    def test_a_region_of_fn_that_caches_its_casts(self):
        class Decorated(torch.nn.Linear):
            @torch.autocast("cuda", dtype=torch.bfloat16)
            def forward(self, x):
                return super().forward(x) + super().forward(x * 2)

        for around in (contextlib.nullcontext(), torch.autocast("cuda", dtype=torch.bfloat16)):
            cache = new_cache(capture_after=1)
            layer = Decorated(64, 64).cuda()
            x = torch.rand(32, 64, device="cuda")
            for i in range(6):
                region = around if i >= 3 else torch.autocast("cuda", dtype=torch.bfloat16)
                with region, torch.no_grad():
                    for _ in range(2):
                        found = cache.run("f", layer, x)
                        torch.rand(1 << 20, device="cuda")
                        self.equal(found, layer(x))
                with torch.no_grad():
                    layer.weight.mul_(1.5)
            self.assertGreater(cache.stats()["replayed"], 3)

    def test_a_region_of_fn_and_one_of_another_thread(self):
        x, stream = torch.full((1000,), -2.0, device="cuda"), torch.cuda.Stream()
        for casts_first in (True, False):
            weight = torch.nn.Parameter(torch.full((1,), 0.5, device="cuda"))
            mine, others = [torch.autocast("cuda", dtype=torch.bfloat16) for _ in range(2)]
            has_cast, may_end = threading.Event(), threading.Event()
            threads, found = [], []

            def cast():
                with torch.cuda.stream(stream), torch.no_grad(), others:
                    found.append(torch.prelu(x, weight))
                    stream.synchronize()
                    has_cast.set()
                    may_end.wait(20)

            def cast_meanwhile():
                if torch.cuda.is_current_stream_capturing() and not threads:
                    threads.append(threading.Thread(target=cast))
                    threads[0].start()
                    has_cast.wait(20)

            def fn(x):
                with mine:
                    if casts_first:
                        cast_meanwhile()
                    y = torch.prelu(x, weight)
                    if not casts_first:
                        cast_meanwhile()
                may_end.set()
                return y

            cache = new_cache()
            with torch.no_grad():
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    torch.prelu(x, weight)  # loads the kernels
                torch.cuda.synchronize()
                for i in range(3):
                    self.equal(cache.run("f", fn, x).float(), x * weight)
                    weight.mul_(2)
            threads[0].join()
            self.equal(found[0].float(), x * 0.5)
            self.assertEqual(cache.stats()["eager"], 0)

    def test_a_result_that_contains_itself_is_direct(self):
        def fn(x):
            node = {"x": x * 2, "children": [x * 3]}
            node["self"] = node
            return node

        cache = new_cache()
        for i in range(4):
            x = torch.rand(100, device="cuda") + i
            found = cache.run("f", fn, x)
            self.assertIs(found["self"], found)
            self.equal(found["x"], x * 2)
            self.equal(found["children"][0], x * 3)
        self.assertEqual(cache.stats()["eager"], 4)

    def test_a_training_step(self):
        def trained(step_of):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
            x, y = torch.rand(128, 32, device="cuda"), torch.rand(128, 1, device="cuda")
            for p in model.parameters():
                p.grad = torch.zeros_like(p)

            def step(x, y):
                torch._foreach_zero_([p.grad for p in model.parameters()])
                torch.nn.functional.mse_loss(model(x), y).backward()
                with torch.no_grad():
                    torch._foreach_add_(list(model.parameters()), [p.grad for p in model.parameters()], alpha=-0.1)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(20):
                    step_of(step, x, y)
            torch.cuda.synchronize()
            return [p.detach().clone() for p in model.parameters()]

        cache = new_cache(capture_after=1)
        graphed = trained(lambda step, *tensors: cache.run("step", step, *tensors))
        for a, b in zip(graphed, trained(lambda step, *tensors: step(*tensors))):
            self.equal(a, b)
        self.assertEqual(cache.stats()["replayed"], 18)

    # Memory

    def test_tensors_made_after_a_capture_survive_its_replays(self):
        cache = new_cache()
        x = torch.rand(1 << 16, device="cuda")
        expected = chain(x).clone()
        cache.run("chain", chain, x)
        kept = [torch.full((1 << 16,), float(i), device="cuda") for i in range(64)]
        for _ in range(10000):
            result = cache.run("chain", chain, x)
        self.equal(result, expected)
        for i, tensor in enumerate(kept):
            self.equal(tensor, torch.full((1 << 16,), float(i), device="cuda"))
        self.assertEqual(cache.stats()["replayed"], 10000)

    def test_a_result_outlives_runs_of_other_keys(self):
        def large_first(x):  # Its temporary is where the next key's result would be.
            return (x * 2).sum()

        def kept(x):
            return x * 3

        for pools in ("shared", "one_per_key"):
            cache = new_cache(pools=pools)
            x = torch.rand(1 << 20, device="cuda")
            cache.run("a", large_first, x)
            for _ in range(3):
                x.add_(1)
                b = cache.run("b", kept, x)
                cache.run("a", large_first, x)
                self.equal(b, x * 3)

    def test_results_that_are_arguments_stay_what_they_are(self):
        cache = new_cache()
        x = torch.zeros(10, device="cuda")
        for i in range(3):
            result = cache.run("add in place", lambda x: x.add_(1), x)
            self.assertEqual(result.data_ptr(), x.data_ptr())
            self.equal(x, torch.full((10,), i + 1.0, device="cuda"))

    def test_a_cycle_through_a_cache_is_collected(self):
        class Model:
            def __init__(self):
                self.cache = new_cache()
                self.weight = torch.rand(100, device="cuda")

            def step(self, x):
                return x * self.weight

            def __call__(self, x):
                return self.cache.run("step", self.step, x)

        model, x = Model(), torch.rand(100, device="cuda")
        self.equal(model(x), x * model.weight)
        dead = weakref.ref(model)
        del model
        gc.collect()
        self.assertIsNone(dead())

    def test_keys_share_the_memory_of_temporaries(self):
        def reserved_by(pools):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            cache = new_cache(pools=pools)
            x = torch.rand(1 << 22, device="cuda")  # 16 MiB.
            for i in range(16):
                cache.run(("sum", i), lambda x: (x * x + 1).sum(), x)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved() - before, cache

        shared, cache = reserved_by("shared")
        del cache
        gc.collect()
        separate, cache = reserved_by("one_per_key")
        self.assertLess(shared, separate / 4)

    def test_memory_goes_back_when_keys_are_erased(self):
        cache = new_cache(pools="one_per_key")
        before = torch.cuda.memory_allocated()
        x = torch.rand(1 << 20, device="cuda")
        for i in range(4):
            cache.run(("chain", i), chain, x)
        self.assertGreater(torch.cuda.memory_allocated(), before + 4 * (1 << 22))
        torch.cuda.synchronize()
        for i in range(4):
            self.assertTrue(cache.contains(("chain", i), chain, x))
            self.assertTrue(cache.erase(("chain", i), chain, x))
            self.assertFalse(cache.erase(("chain", i), chain, x))
        soon(cache, lambda: torch.cuda.memory_allocated() == before + x.nbytes)
        del x
        self.assertEqual(torch.cuda.memory_allocated(), before)
        torch.cuda.empty_cache()

    def test_templates_that_are_dropped_let_go_what_they_kept(self):
        cache = new_cache(max_executables=1, max_templates=1)
        dead = None
        for i in range(3):
            x = torch.rand(1000 + i, device="cuda")
            self.equal(cache.run(("chain", i), chain, x), chain(x))
            if dead is None:
                dead = weakref.ref(x)
        del x
        gc.collect()
        self.assertIsNone(dead())

    # Random numbers

    def random_sequence(self, run):
        torch.manual_seed(42)
        x = torch.ones(1000, device="cuda")
        drop = lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
        results = []
        for i in range(6):
            results.append(run("drop", drop, x).clone())
            results.append(torch.rand(10, device="cuda"))
            if i == 3:
                torch.manual_seed(1)
        return results

    def test_random_numbers_equal_those_of_direct_calls(self):
        cache = new_cache()
        graphed = self.random_sequence(cache.run)
        for a, b in zip(graphed, self.random_sequence(lambda key, fn, *tensors: fn(*tensors))):
            self.equal(a, b)
        self.assertEqual(cache.stats()["replayed"], 5)

    def test_a_capture_leaves_random_numbers_in_flight_alone(self):
        def sequence(run):
            torch.manual_seed(9)
            x = torch.ones(1000, device="cuda")
            drop = lambda x: torch.nn.functional.dropout(x, 0.5)
            results = [run("drop", drop, x).clone()]
            for i in range(4):
                torch.cuda._sleep(20_000_000)
                results.append(run("drop", drop, x).clone())
                results.append(run(("other", i), lambda x: torch.rand_like(x) + i, x).clone())
            return results

        cache = new_cache()
        graphed = sequence(cache.run)
        for a, b in zip(graphed, sequence(lambda key, fn, *tensors: fn(*tensors))):
            self.equal(a, b)

    def test_a_generator_of_the_program(self):
        def sequence(run):
            generator = torch.Generator("cuda")
            generator.manual_seed(5)
            cache.register_generator(generator)
            x = torch.zeros(100, device="cuda")
            return [run("draw", lambda x: x.uniform_(generator=generator).clone(), x).clone() for _ in range(4)]

        cache = new_cache()
        graphed = sequence(cache.run)
        for a, b in zip(graphed, sequence(lambda key, fn, *tensors: fn(*tensors))):
            self.equal(a, b)

    # Streams and threads

    def test_runs_follow_the_current_stream(self):
        cache = new_cache()
        stream = torch.cuda.Stream()
        x = torch.zeros(1 << 20, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for i in range(50):
                torch.cuda._sleep(20000)
                x.add_(1)
                result = cache.run("sum", lambda x: x.sum() / x.numel(), x)
                self.assertEqual(result.item(), i + 1)

    def test_another_stream_is_refused_where_keys_share_memory(self):
        cache = new_cache()
        x = torch.ones(10, device="cuda")
        cache.run("chain", chain, x)
        with torch.cuda.stream(torch.cuda.Stream()):
            with self.assertRaisesRegex(RuntimeError, "on one stream"):
                cache.run("chain", chain, x)
        self.equal(cache.run("chain", chain, x), chain(x))

    def test_threads_with_streams_of_their_own(self):
        cache = new_cache(pools="one_per_key")
        wrong = []

        def work(number):
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((1000,), float(number), device="cuda")
                for i in range(200):
                    x.add_(1)
                    if not torch.equal(cache.run(("work", number), chain, x), chain(x)):
                        wrong.append((number, i))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(cache.stats()["eager"], 0)

    def test_threads_that_share_a_key_get_its_result(self):
        cache = new_cache(pools="one_per_key", max_templates=4, max_executables=2)
        x = torch.rand(1000, device="cuda")
        expected = chain(x)
        for turn in range(20):
            wrong = []

            def work():
                results = [cache.run(("shared", turn), chain, x) for _ in range(5)]
                if any(result is not results[0] for result in results):
                    wrong.append(results)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            self.equal(cache.run(("shared", turn), chain, x), expected)

    def test_a_warm_inside_a_capture_makes_the_run_direct(self):
        cache, other = new_cache(), new_cache()
        x = torch.rand(100, device="cuda")

        def warms(x):
            other.warm("inner", chain, x)
            return chain(x)

        self.equal(cache.run("outer", warms, x), chain(x))
        self.assertEqual((cache.stats()["eager"], cache.stats()["capture_failures"]), (1, 1))
        self.assertIn("direct because its work could not be captured", cache.explain("outer", warms, x))
        self.equal(cache.run("chain", chain, x), chain(x))
        self.equal(other.run("chain", chain, x), chain(x))

    def test_a_run_inside_a_run_becomes_part_of_it(self):
        cache = new_cache()
        x = torch.rand(100, device="cuda")
        outer = lambda x: cache.run("inner", chain, x) * 2
        for _ in range(3):
            x.add_(1)
            self.equal(cache.run("outer", outer, x), chain(x) * 2)

    # Mistakes

    def test_keys_and_arguments_that_cannot_be(self):
        cache = new_cache()
        x = torch.rand(4, device="cuda")
        for key in (1.5, ("a", 0.5), object(), {"a": 1}, torch.rand(3)):
            with self.assertRaises(TypeError):
                cache.run(key, chain, x)
        for argument in (1.5, torch.rand(4), object(), x.to_sparse()):
            with self.assertRaises(TypeError):
                cache.run("key", chain, argument)
        deep, endless = (), []
        for _ in range(100000):
            deep = (deep,)
        endless.append(endless)
        for key in (1 << 70, deep, endless):
            with self.assertRaises(ValueError):
                cache.run(key, chain, x)
            with self.assertRaisesRegex(ValueError, "argument"):
                cache.run("key", chain, key)
        for verb in (cache.run, cache.warm, cache.contains, cache.erase, cache.pin, cache.unpin, cache.explain,
                     cache.run_graph):
            for wrong, name in ((7, "int"), (None, "NoneType")):
                with self.assertRaisesRegex(TypeError, f"fn is a {name}: it must be callable"):
                    verb("key", wrong)
            with self.assertRaises(TypeError):
                verb("without fn")
        by_type = lambda x, i: x * 2 if isinstance(i, list) else x * 3
        self.equal(cache.run("list", by_type, x, [0, 1]), x * 2)
        self.equal(cache.run("list", by_type, x, (0, 1)), x * 3)
        with self.assertRaises((ValueError, RuntimeError)):
            cache.register_generator(torch.Generator())
        for wrong in ({"share": "sometimes"}, {"pools": "none"}, {"device": 77}, {"max_executables": -1}):
            with self.assertRaises(ValueError):
                graphcache_torch.Cache(**wrong)
        self.equal(cache.run(("key", 1, True, None, [2, "x"], x.dtype), chain, x), chain(x))
        either = lambda x, text: x * 2 if text == "\ud800" else x * 3  # the first text has no encoding
        for text in ("\ud800", "\\ud800", "\ud801", "\ud800"):
            self.equal(cache.run(("key", text), either, x, text), either(x, text))
            self.assertTrue(cache.contains(("key", text), either, x, text))
            self.assertIsInstance(cache.explain(("key", text), either, x, text), str)
        self.assertFalse(cache.contains(("key", "\ud800"), either, x, "\ud801"))

    def test_what_fn_raises_is_raised_and_nothing_stays_open(self):
        cache = new_cache()
        x = torch.rand(4, device="cuda")

        def fails(x):
            x + 1
            raise LookupError("mine")

        for _ in range(2):
            with self.assertRaisesRegex(LookupError, "mine"):
                cache.run("fails", fails, x)
        self.equal(cache.run("chain", chain, x), chain(x))
        torch.cuda.empty_cache()  # Would fail inside a capture.

    def test_an_order_to_stop_ends_the_run_at_once(self):
        cache = new_cache()
        x = torch.rand(4, device="cuda")
        calls = []

        def stops(x, order):
            calls.append(order)
            raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[order]("mine")

        for order, expected in (("interrupt", KeyboardInterrupt), ("exit", SystemExit)):
            with self.assertRaisesRegex(expected, "mine"):
                cache.run("stops", stops, x, order)
        self.assertEqual(calls, ["interrupt", "exit"])
        self.equal(cache.run("chain", chain, x), chain(x))

    def test_a_call_that_breaks_the_capture_is_made_directly(self):
        cache = new_cache()
        x = torch.rand(1000, device="cuda")

        def asks(x):
            return x * 2 if x.sum().item() > 0 else x

        for _ in range(3):
            self.equal(cache.run("asks", asks, x), x * 2)
        self.assertEqual(cache.stats()["eager"], 3)
        self.assertGreaterEqual(cache.stats()["capture_failures"], 1)
        self.assertIn("capture", cache.explain("asks", asks, x))
        self.equal(torch.rand(3, device="cuda") * 0, torch.zeros(3, device="cuda"))  # The generator is out of its capture.
        self.equal(cache.run("chain", chain, x), chain(x))

    # Graphs that PyTorch has captured

    def captured(self, fn, *tensors):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            result = fn(*tensors)
        return graph, result

    def test_a_graph_of_torch_is_replayed_and_evicted_and_restored(self):
        cache = new_cache(max_executables=1)
        x = torch.rand(1000, device="cuda")
        made = []

        def maker(i):
            def make():
                made.append(i)
                return self.captured(lambda x: chain(x, i + 2), x)

            return make

        makers = [maker(i) for i in range(3)]
        for turn in range(3):
            for i in range(3):
                x.add_(1)
                self.equal(cache.run_graph(("chain", i), makers[i]), chain(x, i + 2))
        self.assertEqual(made, [0, 1, 2])
        self.assertEqual(cache.stats()["eager"], 0)

    def test_what_the_caller_does_to_a_result_stays_with_him(self):
        x = torch.rand(1000, device="cuda")

        def make():
            graph, y = self.captured(chain, x)
            return graph, {"all": [y]}

        for cache in (new_cache(), new_cache(max_executables=0)):
            for _ in range(3):
                x.add_(1)
                found = cache.run_graph("chain", make)
                self.assertEqual(list(found), ["all"])
                self.equal(found["all"].pop(), chain(x))
                found["more"] = 1

    def test_make_is_called_again_where_the_graph_is_gone(self):
        x = torch.rand(1000, device="cuda")
        made = []

        def make():
            made.append(len(made))
            return self.captured(chain, x)

        cache = new_cache()
        for turn in range(2):
            self.equal(cache.run_graph("chain", make), chain(x))
            self.assertTrue(cache.contains("chain", make))
            self.assertTrue(cache.erase("chain", make))
        self.assertEqual(made, [0, 1])
        direct = new_cache(max_executables=0)
        for turn in range(3):
            x.add_(1)
            self.equal(direct.run_graph("chain", make), chain(x))
        self.assertEqual(direct.stats()["eager"], 3)
        self.assertEqual(made, [0, 1, 2, 3, 4])

    def test_a_graph_of_torch_draws_new_random_numbers(self):
        def sequence(run):
            torch.manual_seed(11)
            return [run().clone() for _ in range(4)]

        x = torch.ones(1000, device="cuda")
        draw = lambda: torch.rand_like(x) + torch.randn_like(x)
        cache = new_cache()
        make = lambda: self.captured(draw)
        cache.run_graph("draw", make)
        for a, b in zip(sequence(lambda: cache.run_graph("draw", make)), sequence(draw)):
            self.equal(a, b)

    def test_a_graph_of_torch_is_let_go_with_its_key(self):
        cache = new_cache()
        x = torch.rand(100, device="cuda")
        graphs = [self.captured(chain, x)]
        dead = weakref.ref(graphs[0][0])
        make = lambda: graphs.pop()
        self.equal(cache.run_graph("chain", make), chain(x))
        gc.collect()
        self.assertIsNotNone(dead())
        torch.cuda.synchronize()
        self.assertTrue(cache.erase("chain", make))
        gc.collect()
        soon(cache, lambda: dead() is None)
        self.assertIsNone(dead())
        with self.assertRaises(IndexError):
            cache.run_graph("chain", make)

    def test_what_is_no_graph(self):
        cache = new_cache()
        x = torch.rand(100, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(x)
        with self.assertRaises(RuntimeError):
            cache.run_graph("not kept", lambda: graph)
        with self.assertRaises(RuntimeError):
            cache.run_graph("not captured", lambda: torch.cuda.CUDAGraph(keep_graph=True))
        with self.assertRaises((TypeError, RuntimeError)):
            cache.run_graph("no graph", lambda: 7)
        self.equal(cache.run("chain", chain, x), chain(x))


if __name__ == "__main__":
    unittest.main()
