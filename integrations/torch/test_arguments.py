"""Ways of passing arguments to fn, and what the module does with them. Needs a GPU. Each way is a subTest with a name.

  keyword arguments, of any name, in any order          a replay with new tensors and floats; each order is a key
  default values, default values made anew              the same; each default value is a key
  dicts, nested, with other keys or another order       the same; the keys and their order are part of the key
  OrderedDict, defaultdict, lists and dicts with        the same; types and attributes are part of the key
    attributes
  named tuples, torch.return_types, torch.Size          the same
  dataclasses: frozen, slots, nested, ModelOutput       the same
  int, bool, str, None, types of PyTorch, enums, NumPy  the same; each value is a key
  objects                                               each contents is a key, whichever object has them
  modules, functions, partials, methods                 each module, code and closed-over value is a key
  callables made anew that count by identity            right, and one warning
  sets, bytes, NumPy arrays, generators, objects        TypeError that names the type; fn is not called
    without __dict__, tensors of the CPU
  tensors in the key, with names, of torch.func         TypeError
  containers that contain themselves, or are too deep   ValueError
  fn changes its arguments                              direct runs, and right; RuntimeError if only a capture shows it
  fn keeps its arguments                                right; tensors count by their memory
  results in tuples, dicts, dataclasses, ModelOutput    copied, in a graph
  graphed: functions, methods, modules, shared caches   as run(); names, signatures, state_dict stay as they were
  copy_inputs: any function, shape, type, stride        one capture for all addresses; direct runs if fn writes
  inline_in_foreign_capture                             the run is part of that capture; else RuntimeError
  on_capture_failure="return_error"                     what broke the capture is raised, and nothing was enqueued
  diagnose, share, pools, capture_after, copy_inputs    right in all combinations
  listeners                                             an event for each step; their exceptions are not raised
  wrong options                                         ValueError or TypeError
"""
import argparse
import collections
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import pickle
import sys
import threading
import time
import types
import typing
import unittest
import warnings
import weakref

import torch
import torch.nn.functional as F

import graphcache_torch
from test_moving import rand
from test_torch import ON_GPU, chain, new_cache

try:
    import numpy
except ImportError:
    numpy = None

RUNS = 10  # of each key
EVENTS = ("run capture launch instantiate update upload evict lend destroy_executable destroy_graph free erase stray "
          "message").split()


def of(fn, /, *args, **kwargs):
    return fn, args, kwargs


def number():
    return 0.1 + torch.rand(()).item()


def bits(x):
    return x.detach().resolve_conj().contiguous().flatten().view(torch.uint8)


def same(a, b):
    """Whether two results, or two arguments, have the same types, and in them the same numbers bit by bit."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        added = getattr(a, "__dict__", {}).keys() == getattr(b, "__dict__", {}).keys()
        return added and len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return same(vars(a), vars(b)) if hasattr(a, "__dict__") else a == b


class Named(typing.NamedTuple):
    x: torch.Tensor
    scale: float = 2.0


@dataclasses.dataclass
class Plain:
    x: torch.Tensor
    scale: float = 2.0
    times: int = 1
    name: str = "plain"
    more: list = dataclasses.field(default_factory=list)


Other = collections.namedtuple("Other", "x scale")
AlsoPlain = dataclasses.make_dataclass("AlsoPlain", (), bases=(Plain,))
Frozen = dataclasses.make_dataclass("Frozen", ["x", ("scale", float, 2.0)], frozen=True)
Slots = dataclasses.make_dataclass("Slots", ["x", ("scale", float, 2.0)], slots=True)
Nested = dataclasses.make_dataclass("Nested", ["inner", "rest"], frozen=True, slots=True, kw_only=True)


@dataclasses.dataclass(slots=True)
class Classed:
    x: torch.Tensor
    eps: typing.ClassVar[float] = 0.5
    registry: typing.ClassVar[dict] = {}


class Added(Named):
    """Has attributes beside its items."""


def added(x):
    named = Added(x)
    named.text, named.repeated = "added", x
    return named


Color, Count = enum.Enum("Color", "RED BLUE"), enum.IntEnum("Count", "ONE TWO")
List, Dict = type("List", (list,), {}), type("Dict", (dict,), {})


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict):
    """As Hugging Face's: its fields that are not None are its items, too."""

    logits: torch.Tensor = None
    state: object = None

    def __setattr__(self, name, value):
        if value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


class Config:
    def __init__(self, **contents):
        vars(self).update(contents)

    def apply(self, x, **more):
        return x * self.n

    def __call__(self, x):
        return x * self.n

    @classmethod
    def double(cls, x):
        return x * 2


OtherConfig = type("OtherConfig", (Config,), {})


class Mode(torch.nn.Module):
    """Its results tell how it was trained, and how it was called."""

    def __init__(self, n=2):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1000,), float(n), device="cuda"))

    def forward(self, x, *, scale=None, **more):
        x = x * self.weight if self.training else x - self.weight
        x = x if scale is None else x * scale
        return ModelOutput(x, list(more) or None)


def keywords(x, *, scale=2.0, shift=None):
    return x * scale if shift is None else x * scale + shift


def names(self, key, fn, *, args, kwargs):
    return self * key + fn * args[0] + kwargs["key"]


def taken(**kwargs):
    return kwargs["key"] * kwargs["fn"] + kwargs["cls"]


def fields(p):
    return p.x * p.scale


def temporaries(x):
    """They are where other keys' results would be."""
    return (x * 2).sum() + (x * x).sum()


def ways_of_containers():
    """Names, how many keys, and what makes fn and its arguments in a run."""
    yield "keywords", 1, lambda i: of(keywords, rand(1000), scale=number(), shift=rand(1000))
    yield "keywords alone", 1, lambda i: of(keywords, x=rand(1000), scale=number())
    yield "keywords named key, fn, self, args, kwargs", 1, lambda i: of(
        names, self=rand(1000), key=rand(1000), fn=rand(1000), args=(rand(1000),), kwargs={"key": rand(1000)})
    yield "keywords that fn takes as a dict", 1, lambda i: of(taken, key=rand(1000), fn=rand(1000), cls=rand(1000))
    yield "another order of keywords", 2, lambda i: of(
        lambda **all: list(all.values())[0] * 2 - list(all.values())[1],
        **dict([("a", rand(1000)), ("b", rand(1000))][::1 - i % 2 * 2]))
    yield "default values", 2, lambda i: of(keywords, rand(1000), **({"scale": number()} if i % 2 else {}))

    def with_default(i):
        def fn(x, n=2 + i % 2):
            return x * n

        return of(fn, rand(1000))

    yield "default values made anew", 2, with_default
    yield "dict", 1, lambda i: of(lambda d: d["a"] * d["s"] + d["in"]["b"][0], {
        "a": rand(1000), "s": number(), "in": {"b": [rand(1000)]}})
    yield "another order of a dict", 2, lambda i: of(
        lambda d: list(d.values())[0] * 2 - list(d.values())[1],
        dict([("a", rand(1000)), ("b", rand(1000))][::1 - i % 2 * 2]))
    yield "other keys of a dict", 2, lambda i: of(
        lambda d: next(iter(d.values())) * (2 if "a" in d else 3), {"ab"[i % 2]: rand(1000)})
    yield "keys that are no text", 2, lambda i: of(
        lambda d: d[0] * d[(1, "a")] * (2 if True in d else 3), {0: rand(1000), (1, "a"): rand(1000), i % 2 + 1: None})
    yield "OrderedDict or dict", 2, lambda i: of(
        lambda d: d["a"] * (2 if type(d) is dict else 3), (dict, collections.OrderedDict)[i % 2](a=rand(1000)))
    yield "defaultdict", 1, lambda i: of(lambda d: d["a"] * 2, collections.defaultdict(list, a=rand(1000)))

    def with_attribute(of_type):
        def make(i):
            held = of_type([("a", rand(1000))])
            held.n = 2 + i % 2
            return of(lambda held: (dict(held)["a"] * held.n), held)

        return make

    yield "attribute of a list", 2, with_attribute(List)
    yield "attribute of a dict", 2, with_attribute(Dict)
    yield "empty containers", 1, lambda i: of(lambda x, *held: x * (2 + len(held)), rand(1000), [], {}, (), [[]])
    yield "lists in tuples", 1, lambda i: of(
        lambda t: t[0][0] * t[1][0][0], ([rand(1000)], ([rand(1000)],)))
    yield "list or tuple", 2, lambda i: of(
        lambda t: t[0] * (2 if isinstance(t, list) else 3), (list, tuple)[i % 2]([rand(1000)]))
    yield "named tuple", 1, lambda i: of(fields, Named(rand(1000), number()))
    yield "another named tuple", 2, lambda i: of(
        lambda t: t.x * t.scale + (2 if isinstance(t, Named) else 3), (Named, Other)[i % 2](rand(1000), number()))
    yield "torch.return_types", 1, lambda i: of(lambda r: r.values * 2 + r.indices, rand(64, 100).max(1))
    yield "torch.Size", 2, lambda i: of(
        lambda x, size: x.view(size) * 2, rand(1000), torch.Size(((10, 100), (100, 10))[i % 2]))
    yield "dataclass", 1, lambda i: of(fields, Plain(rand(1000), number()))
    yield "frozen dataclass", 1, lambda i: of(fields, Frozen(rand(1000), number()))
    yield "dataclass with slots", 1, lambda i: of(fields, Slots(rand(1000), number()))
    yield "dataclass with class variables", 1, lambda i: of(lambda p: p.x * p.eps, Classed(rand(1000)))
    yield "nested dataclasses", 1, lambda i: of(
        lambda p: p.inner.x * p.inner.scale + p.rest["a"].x,
        Nested(inner=Plain(rand(1000), number()), rest={"a": Frozen(rand(1000))}))
    yield "list of a dataclass", 1, lambda i: of(lambda p: p.x * p.more[0], Plain(rand(1000), more=[rand(1000)]))
    yield "number of a dataclass", 2, lambda i: of(lambda p: p.x * p.times, Plain(rand(1000), times=2 + i % 2))
    yield "text of a dataclass", 2, lambda i: of(
        lambda p: p.x * len(p.name), Plain(rand(1000), name="a" * (2 + i % 2)))
    yield "another dataclass", 2, lambda i: of(
        lambda p: p.x * (2 if type(p) is Plain else 3), (Plain, AlsoPlain)[i % 2](rand(1000)))

    def with_extra(i):
        p = Plain(rand(1000))
        p.extra = 2 + i % 2
        return of(lambda p: p.x * p.extra, p)

    yield "attribute that is no field", 2, with_extra
    yield "ModelOutput", 1, lambda i: of(
        lambda o: o["logits"] * o.state["a"], ModelOutput(rand(1000), {"a": rand(1000)}))
    yield "lists of dataclasses by keyword", 1, lambda i: of(
        lambda *, all: all[0].x * all[1].scale, all=[Plain(rand(1000)), Slots(rand(1000), number())])


def ways_of_values():
    pair = lambda *both: lambda i: both[i % 2]
    kept, layers = [rand(1000), rand(1000)], [torch.nn.Linear(64, 64, device="cuda") for _ in range(2)]
    modes, holder, shared_set = [Mode(2), Mode(3)], Config(n=2), {1, 2}
    times = lambda x, n: x * n
    for name, values in {
        "int": (2, 3), "bool or int": (True, 1), "text": ("a", "bb"), "None": (None, 1), "enum": tuple(Color),
        "int enum": tuple(Count), "int enum or int": (Count.TWO, 2), "large int": (1 << 40, 3),
    }.items():
        yield name, 2, lambda i, values=values: of(lambda x, v: x * sum(repr(v).encode()), rand(1000), values[i % 2])
    yield "dtype, device, layout", 2, lambda i: of(
        lambda x, t, d, l: (torch.ones(9, dtype=t, device=d, layout=l), x * 2), rand(1000),
        (torch.float16, torch.float64)[i % 2], torch.device("cuda", 0), torch.strided)
    yield "memory_format", 2, lambda i: of(
        lambda x, f: torch.ones_like(x, memory_format=f) * (2 if f is torch.channels_last else 3) + x,
        rand(2, 3, 4, 5), (torch.channels_last, torch.contiguous_format)[i % 2])
    if numpy is not None:
        yield "NumPy int", 2, lambda i: of(times, rand(1000), numpy.int64(2 + i % 2))
        yield "NumPy float", 1, lambda i: of(times, rand(1000), numpy.float64(number()))
    yield "object", 1, lambda i: of(lambda x, c: x * c.n, rand(1000), Config(n=3))
    yield "object of other contents", 2, lambda i: of(lambda x, c: x * c.n, rand(1000), Config(n=2 + i % 2))
    yield "object of another type", 2, lambda i: of(
        lambda x, c: x * (2 if type(c) is Config else 3), rand(1000), (Config, OtherConfig)[i % 2](n=2))
    yield "object of other names", 2, lambda i: of(
        lambda x, c: x * len(next(iter(vars(c)))), rand(1000), Config(**{"a" * (1 + i % 2): 2}))

    def changed(i):
        holder.n = 2 + i % 2
        return of(lambda x, c: x * c.n, rand(1000), holder)

    yield "object that has changed", 2, changed
    yield "float in an object", 2, lambda i: of(lambda x, c: x * c.n, rand(1000), Config(n=(0.3, 0.7)[i % 2]))
    yield "tensor in an object", 2, lambda i: of(lambda x, c: x * c.n, rand(1000), Config(n=kept[i % 2]))
    yield "containers in an object", 2, lambda i: of(
        lambda x, c: x * c.a["b"][0] * c.c.n, rand(1000), Config(a={"b": [kept[0]]}, c=Config(n=2 + i % 2)))
    yield "objects in containers", 2, lambda i: of(
        lambda d: d["a"][0].n * d["x"], {"a": [Config(n=2 + i % 2)], "x": rand(1000)})
    yield "functions in an object", 2, lambda i: of(
        lambda x, c: c.f(x), rand(1000), Config(f=(torch.sin, torch.neg)[i % 2]))
    yield "set in an object", 1, lambda i: of(lambda x, c: x * len(c.s), rand(1000), Config(s=shared_set))
    yield "namespaces", 2, lambda i: of(
        lambda x, a, b: x * a.n * b.n, rand(1000), argparse.Namespace(n=2 + i % 2), types.SimpleNamespace(n=2 + i % 2))
    yield "module", 2, lambda i: of(lambda m, x: m(x), layers[i % 2], rand(64, 64))
    yield "modules in containers", 2, lambda i: of(
        lambda d: d["m"][0](d["x"]), {"m": [layers[i % 2]], "x": rand(64, 64)})
    yield "training flag of a module", 2, lambda i: of(lambda m, x: m(x), modes[0].train(i % 2 == 0), rand(1000))
    yield "function", 2, lambda i: of(lambda f, x: f(x), (torch.sin, torch.neg)[i % 2], rand(1000))
    yield "lambda made anew", 1, lambda i: of(lambda f, x: f(x), lambda x: x * 2, rand(1000))
    yield "what a function has closed over", 2, lambda i: of(
        lambda f, x: f(x), (lambda n: lambda x: x * n)(2 + i % 2), rand(1000))
    yield "type", 2, lambda i: of(lambda t, x: t(x).x * (2 if t is Plain else 3), (Plain, Slots)[i % 2], rand(1000))
    yield "partial as an argument", 2, lambda i: of(
        lambda f, x: f(x), functools.partial(times, n=2 + i % 2), rand(1000))
    yield "method as an argument", 2, lambda i: of(lambda f, x: f(x), layers[i % 2].forward, rand(64, 64))

    # What fn is.
    yield "partial", 1, lambda i: of(functools.partial(keywords, scale=2), rand(1000))
    yield "partial of other contents", 2, lambda i: of(functools.partial(keywords, scale=2 + i % 2), rand(1000))
    yield "partial of a float", 2, lambda i: of(functools.partial(keywords, scale=(0.3, 0.7)[i % 2]), rand(1000))
    yield "partial of tensors", 2, lambda i: of(functools.partial(torch.mul, kept[i % 2]), rand(1000))
    yield "partial of containers", 2, lambda i: of(
        functools.partial(lambda d, x: x * d["a"][0] * d["n"], {"a": [kept[0]], "n": 2 + i % 2}), rand(1000))
    yield "nested partial", 2, lambda i: of(
        functools.partial(functools.partial(keywords, scale=9), scale=2 + i % 2), rand(1000))
    yield "keyword that replaces a partial's", 1, lambda i: of(
        functools.partial(keywords, scale=9, shift=None), rand(1000), scale=number())
    yield "partial of a method", 2, lambda i: of(functools.partial(modes[i % 2].forward, more=2), rand(1000))
    yield "partial of a module", 2, lambda i: of(functools.partial(modes[i % 2], scale=3), rand(1000))
    yield "lambda", 2, lambda i: of((lambda n: lambda x: x * n)(2 + i % 2), rand(1000))
    yield "bound method", 2, pair(of(holder.apply, kept[0]), of(Config(n=5).apply, kept[1]))
    yield "callable object", 2, (lambda both: lambda i: of(both[i % 2], rand(1000)))([Config(n=2), Config(n=3)])
    yield "module as fn, with keywords", 2, lambda i: of(modes[i % 2], rand(1000), scale=number(), a={"b": rand(1000)})
    yield "training flag of fn", 2, lambda i: of(modes[1].train(i % 2 == 0), rand(1000), scale=number())
    yield "class method", 1, lambda i: of(Config.double, rand(1000))


def results():
    """Functions of a tensor whose results are in containers."""
    yield "dataclass", lambda x: Plain(x * 3, 1.5, 2)
    yield "frozen dataclass", lambda x: Frozen(x * 3)
    yield "dataclass with slots", lambda x: Slots(x * 3)
    yield "nested dataclasses", lambda x: Nested(inner=Plain(x * 3, more=[x * 4]), rest={"a": Frozen(x * 5)})
    yield "named tuple", lambda x: Named(x * 3)
    yield "named tuple with attributes", lambda x: added(x * 3)
    yield "dataclass with class variables", lambda x: Classed(x * 3)
    yield "ModelOutput", lambda x: ModelOutput(x * 3, (x * 4, None))
    yield "OrderedDict", lambda x: collections.OrderedDict(b=x * 3, a=x * 4)
    yield "defaultdict", lambda x: collections.defaultdict(list, b=[x * 3])
    yield "one tensor twice", lambda x: (lambda y: {"a": y, "b": [y]})(x * 3)
    yield "views of one tensor", lambda x: (lambda y: (y[:10], y[5:]))(x * 3)
    yield "no tensors", lambda x: (None, "a", 1, torch.Size((1,)))
    yield "Size and dtype beside tensors", lambda x: {"size": x.shape, "dtype": x.dtype, "x": x * 3}


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class Arguments(unittest.TestCase):
    def setUp(self):
        self.x = rand(1000)

    def check(self, make, keys=1, captures=4, cache=None, is_written=True, keys_runs=RUNS, **options):
        """Runs with new arguments each time, and compares with direct calls with equal ones: the results, and what fn
        wrote into its arguments. A key is captured so often at most, and no run is direct, unless captures is None."""
        cache = cache if cache is not None else new_cache(**options)
        spare, kept, found_captures = torch.ones(1 << 16, device="cuda"), [], 0
        with torch.no_grad():
            for i in range(keys_runs * keys):
                torch.manual_seed(i)
                fn, args, kwargs = make(i)
                wanted = fn(*args, **kwargs)
                torch.manual_seed(i)
                fn, *given = make(i)
                kept.append((fn, given))  # so that the next ones lie elsewhere
                before = cache.stats()["captures"]
                found = cache.run("f", fn, *given[0], **given[1])
                found_captures += cache.stats()["captures"] - before
                cache.run("temporaries", temporaries, spare)
                self.assertTrue(same(found, wanted), (i, found, wanted))
                self.assertTrue(not is_written or same(given, [args, kwargs]), f"arguments, run {i}")
            if captures is not None:
                self.assertLessEqual(found_captures, captures * keys, cache.explain("f", fn, *given[0], **given[1]))
                self.assertEqual(cache.stats()["eager"], 0)
                hits = sum(cache.stats()[name] for name in ("replayed", "patched", "switched", "restored", "updated"))
                self.assertGreaterEqual(hits, (keys_runs - captures) * keys)
        return cache


class WaysTest(Arguments):
    def test_containers_whose_tensors_and_floats_move(self):
        for name, keys, make in ways_of_containers():
            with self.subTest(name):
                self.check(make, keys)

    def test_values_objects_and_functions(self):
        for name, keys, make in ways_of_values():
            with self.subTest(name):
                self.check(make, keys)

    def test_the_first_run_is_direct(self):
        for name, keys, make in itertools.chain(ways_of_containers(), ways_of_values()):
            for pools in ("shared", "one_per_key"):
                with self.subTest(name, pools=pools):
                    cache = self.check(make, keys, captures=None, capture_after=1, keys_runs=3, pools=pools)
                    if pools == "shared":
                        # That of the temporaries, and two of a key: until something moves, its addresses are in it.
                        self.assertLessEqual(cache.stats()["eager"], 2 * keys + 1)

    def test_floats_that_are_not_finite(self):
        numbers = [float(text) for text in "nan inf -inf -0.0 0.0 1e-310 1e300 1e-45".split()]
        self.check(lambda i: of(lambda d: d["x"] * d["a"], {"x": rand(1000), "a": numbers[i % 8]}), captures=None)

    def test_all_verbs_take_keywords(self):
        cache, given = new_cache(), {"scale": 2.0, "shift": rand(1000)}
        cache.warm("f", keywords, self.x, **given)
        self.assertTrue(cache.contains("f", keywords, self.x, **given))
        self.assertFalse(cache.contains("f", keywords, self.x, scale=2.0))
        cache.pin("f", keywords, self.x, **given)
        self.assertTrue(same(cache.run("f", keywords, self.x, **given), keywords(self.x, **given)))
        cache.unpin("f", keywords, self.x, **given)
        self.assertIsInstance(cache.explain("f", keywords, self.x, **given), str)
        self.assertTrue(cache.erase("f", keywords, self.x, **given))
        self.assertFalse(cache.contains("f", keywords, self.x, **given))
        with self.assertRaises(TypeError):
            cache.run(key="f", fn=keywords, x=self.x)

    def test_arguments_are_not_kept(self):
        for name, keys, make in ways_of_containers():
            with self.subTest(name):
                cache, gone = new_cache(), []
                for i in range(8):
                    fn, args, kwargs = make(0)
                    gone += [weakref.ref(x) for x in torch.utils._pytree.tree_leaves((args, kwargs))
                             if isinstance(x, torch.Tensor)]
                    cache.run("f", fn, *args, **kwargs)
                del fn, args, kwargs
                gc.collect()
                self.assertEqual([ref() for ref in gone], [None] * len(gone))

    def test_callables_made_anew_are_warned_of_once(self):
        for name, make, expected in (
            ("callable objects", lambda i: of(Config(n=2 + i % 2), self.x), 1),
            ("what a lambda has closed over", lambda i: of((lambda c: lambda x: x * c[0])([2 + i % 2]), self.x), 1),
            ("other arguments", lambda i: of(lambda x, n: x * n, self.x, i), 0),
        ):
            with self.subTest(name), warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                self.check(make, keys=14, captures=None)
                self.assertEqual([w.category for w in found], [UserWarning] * expected)


    def test_texts_of_numpy(self):
        cache = new_cache()
        for i in range(RUNS):
            name = numpy.array(["a", "b"])[i % 2]
            self.assertTrue(same(cache.run(("f", name), lambda x, name: x * len(name), self.x, name), self.x))
        self.assertEqual(cache.stats()["captures"], 2)

    def test_functions_with_empty_cells(self):
        def make(is_first):
            if is_first:
                a = 2
            else:
                b = 2

            def fn(x):
                try:
                    return x * a
                except NameError:
                    return x + b

            return fn

        cache = new_cache()
        for is_first in (True, False, True, False):
            self.assertTrue(same(cache.run("f", make(is_first), self.x), self.x * 2 if is_first else self.x + 2))

    def test_captures_leave_no_objects(self):
        cache = new_cache()

        def capture(times):
            for _ in range(times):
                cache.erase("f", chain, self.x)
                cache.run("f", chain, self.x)
            gc.collect()
            return sys.getallocatedblocks()

        before = capture(100)
        self.assertLess(capture(400) - before, 200)

    def test_a_tuple_class_with_a_new_of_its_own(self):
        class Pair(tuple):
            def __new__(cls, *parts):
                return super().__new__(cls, parts)

        for options in ({}, {"copy_inputs": True}):
            cache = new_cache(**options)
            for _ in range(RUNS):
                x, y = rand(1000), rand(1000)
                found = cache.run("f", lambda pair: Pair(pair[0] * 2, pair[1] + len(pair)), Pair(x, y))
                self.assertTrue(same(found, Pair(x * 2, y + 2)))


class RefusedTest(Arguments):
    def test_types(self):
        calls, fn = [], lambda *args, **kwargs: calls.append(args)
        inside = {
            "set": ({1}, "set"), "frozenset": (frozenset((1,)), "frozenset"), "bytes": (b"a", "bytes"),
            "bytearray": (bytearray(b"a"), "bytearray"), "generator": ((i for i in ()), "generator"),
            "iterator": (iter([1]), "list_iterator"), "object": (object(), "object"),
            "slots": (type("Slotted", (), {"__slots__": "n"})(), "Slotted"),
            "complex": (1j, "complex"), "tensor of the CPU": (torch.ones(3), "CPU"),
            "sparse tensor": (torch.eye(3, device="cuda").to_sparse(), ""),
        }
        if numpy is not None:
            inside["NumPy array"] = (numpy.ones(3), "ndarray")
        for name, (value, text) in inside.items():
            for way, make in {
                "by position": lambda: of(fn, value), "by keyword": lambda: of(fn, self.x, a=value),
                "in a list": lambda: of(fn, [self.x, [value]]),
                "in a dict": lambda: of(fn, {"a": value}),
                "in a dataclass": lambda: of(fn, Plain(value)),
            }.items():
                with self.subTest(name, way=way), self.assertRaisesRegex(TypeError, text):
                    _, args, kwargs = make()
                    new_cache().run("f", fn, *args, **kwargs)
        self.assertEqual(calls, [])

    def test_tensors_in_the_key(self):
        for key in (self.x, ("a", [self.x]), torch.nn.Parameter(self.x)):
            with self.assertRaisesRegex(TypeError, "a tensor cannot be part of a key"):
                new_cache().run(key, chain, self.x)

    def test_tensors_of_transforms(self):
        cache = new_cache()
        for transform in (torch.vmap, torch.func.grad):
            with self.assertRaisesRegex(TypeError, "an argument is a tensor whose class decides what operators do"):
                transform(lambda x: cache.run("f", torch.sum, x))(self.x)

    @unittest.skipUnless(hasattr(torch.Tensor, "refine_names"), "tensors have no names")
    def test_tensors_with_names(self):
        cache, x = new_cache(), rand(40, 25)
        cache.run("f", torch.sum, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = x.refine_names("N", "C")
        with self.assertRaisesRegex(TypeError, "memory does not describe it completely"):
            cache.run("f", torch.sum, named)

    def test_tensors_of_the_cpu_in_objects(self):
        """They are refused, or the run is direct."""
        cache = new_cache(capture_after=1)
        for i in range(3):
            config = Config(n=torch.full((1000,), float(i)))
            try:
                found = cache.run("f", lambda x, c: x * c.n.to("cuda"), self.x, config)
            except TypeError as why:
                self.assertIn("CPU", str(why))
            else:
                self.assertTrue(same(found, self.x * i), i)

    def test_containers_without_end(self):
        itself, of_itself, deep = [], {}, self.x
        itself.append(itself)
        of_itself["a"] = [of_itself]
        for _ in range(200):
            deep = [deep]
        for name, value in {"list": itself, "dict": of_itself, "deep": deep, "dataclass": Plain(itself)}.items():
            with self.subTest(name), self.assertRaises(ValueError):
                new_cache().run("f", temporaries, value)

    def test_options(self):
        for error, options in (
            (ValueError, {"share": "sometimes"}), (ValueError, {"pools": "none"}), (ValueError, {"device": 77}),
            (ValueError, {"on_capture_failure": "ignore"}), (ValueError, {"max_executables": -1}),
            (ValueError, {"max_templates": -1}), (ValueError, {"capture_after": -1}), (TypeError, {"no_option": 1}),
            (TypeError, {"listeners": 7}), (TypeError, {"listeners": (7,)}), (TypeError, {"listeners": temporaries}),
        ):
            with self.subTest(str(options)):
                with self.assertRaises(error):
                    graphcache_torch.Cache(**options)
                with self.assertRaises(error):
                    graphcache_torch.graphed(**options)(temporaries)(self.x)  # whose cache is made now
        with self.assertRaises(TypeError):
            graphcache_torch.Cache(8)


def changes():
    """Functions that change their arguments, beside a tensor, and what makes these."""
    yield "list.append", lambda x, c: (c.append(1), x * len(c))[1], lambda: [5]
    yield "append of a tensor", lambda x, c: (c.append(x * 2), x * 3)[1], lambda: []
    yield "list.clear", lambda x, c: (c.clear(), x * 3)[1], lambda: [1]
    yield "another tensor in a list", lambda x, c: c.__setitem__(0, c[0] * x) or c[0] + 1, lambda: [rand(1000)]
    yield "another float in a list", lambda x, c: c.__setitem__(0, 0.5) or x * c[0], lambda: [0.25]
    yield "two tensors swapped", lambda x, c: c.reverse() or c[0] * 2 + x, lambda: [rand(1000), rand(1000)]
    yield "dict key", lambda x, c: c.update(y=1) or x * len(c), lambda: {"a": 1}
    yield "dict key of a tensor", lambda x, c: c.update(y=x + 1) or x * len(c), lambda: {"a": 1}
    yield "dict.pop", lambda x, c: x * c.pop("n"), lambda: {"n": 3}
    yield "defaultdict that is read", lambda x, c: x * (2 + len(c["n"])), lambda: collections.defaultdict(list)
    yield "list in a dict", lambda x, c: c["a"].append(1) or x * 3, lambda: {"a": []}
    yield "attribute", lambda x, c: setattr(c, "n", c.n + 1) or x * c.n, lambda: Config(n=3)
    yield "attribute that is new", lambda x, c: setattr(c, "m", x * 2) or x * c.n, lambda: Config(n=3)
    yield "attribute in a list", lambda x, c: setattr(c[0], "n", 7) or x * c[0].n, lambda: [Config(n=3)]
    yield "field", lambda x, c: setattr(c, "scale", 0.5) or x * c.scale, lambda: Plain(rand(1000))
    yield "field of a tensor", lambda x, c: setattr(c, "x", x * 2) or x * c.scale, lambda: Slots(rand(1000))
    yield "frozen field", lambda x, c: object.__setattr__(c, "scale", 0.5) or x * c.scale, lambda: Frozen(rand(1000))
    yield "resize_", lambda x, c: c.resize_(500) * x[:500], lambda: rand(1000)
    yield "t_", lambda x, c: c.t_() * x[0], lambda: rand(10, 10)


class OfOneKeyTest(Arguments):
    """What had the key of something else."""

    def test_what_is_told_apart(self):
        class Base:
            __slots__ = ("a",)

        @dataclasses.dataclass
        class WithSlot(Base):
            x: object

        def with_attribute(held, **attributes):
            vars(held).update(attributes)
            return held

        def slot(value):
            made = WithSlot(self.x)
            made.a = value
            return made

        def twice(same):
            a, b = [2.0], [2.0]
            return (a, a) if same else (a, b)

        index = type("Index", (Config,), {"__index__": lambda self: 3})
        cases = {
            "None and a float": (lambda i: of(lambda x, a, b: x * a if b is None else x - b,
                                              self.x, *((2.0, None), (None, 2.0))[i])),
            "attribute of a dict that is also an item": lambda i: of(
                lambda x, d: x * 2 if d.on else x * 3, self.x, with_attribute(Dict(a=True, b=False), on=i == 0)),
            "attribute of a list that is also an element": lambda i: of(
                lambda x, l: x * l.n, self.x, with_attribute(List([1, 2]), n=1 + i)),
            "slot of a dataclass": lambda i: of(lambda s: s.x * s.a, slot(2 + i)),
            "object with __index__": lambda i: of(lambda x, o: x * o.n, self.x, index(n=2 + i)),
            "type and its name": lambda i: of(
                lambda x, t: x * 2 if isinstance(t, str) else x * 3, self.x, (torch.float32, "torch.float32")[i]),
            "one object twice": lambda i: of(
                lambda x, a, b: x * 2 if a is b else x * 3, self.x, *twice(i == 0)),
        }
        for name, make in cases.items():
            with self.subTest(name):
                self.check(lambda i: make(i % 2), keys=2, captures=None)

    def test_results_of_each_run(self):
        @dataclasses.dataclass
        class State:
            x: torch.Tensor
            n: int = 0

        ways = {
            "dataclass": (lambda s: (s.x * 2, s), lambda: State(self.x)),
            "object": (lambda s: (s.x * 2, s), lambda: Config(x=self.x, n=0)),
            "object in an object": (lambda s: (s.c.x * 2, s.c), lambda: Config(c=Config(x=self.x, n=0))),
            "list": (lambda s: (s[0] * 2, s), lambda: [self.x]),
        }
        for name, (fn, make) in ways.items():
            with self.subTest(name):
                cache = new_cache()
                for i in range(6):
                    given = make()
                    doubled, back = cache.run("f", fn, given)
                    self.assertTrue(same(doubled, self.x * 2))
                    self.assertIs(back, given.c if name == "object in an object" else given)
                self.assertEqual(cache.stats()["captures"], 1)

    def test_results_that_the_caller_edits(self):
        cache = new_cache()
        for i in range(6):
            found = cache.run("f", lambda x: {"a": x * 2, "l": [x * 3]}, self.x)
            self.assertTrue(same(found, {"a": self.x * 2, "l": [self.x * 3]}), i)
            found["a"] = found["a"][:10]
            found["l"].clear()

    def test_inputs_that_are_the_last_results(self):
        for name, fn in {"shift": lambda a, b: (b, a + b), "swap": lambda a, b: (b, a), "view": lambda a, b: (b[:], a)}.items():
            for pools in ("shared", "one_per_key"):
                with self.subTest(name, pools=pools):
                    cache = new_cache(copy_inputs=True, pools=pools)
                    found = wanted = (rand(1000), rand(1000))
                    for i in range(8):
                        found, wanted = cache.run("f", fn, *found), fn(*wanted)
                        self.assertTrue(same(found, wanted), i)

    def test_copies_stay_out_of_foreign_captures(self):
        cache = new_cache(copy_inputs=True, inline_in_foreign_capture=True, pools="one_per_key")
        other = rand(1000)
        for _ in range(3):
            cache.run("f", chain, self.x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inside = cache.run("f", chain, other)
        found = cache.run("f", chain, self.x)
        graph.replay()
        self.assertTrue(same(found, chain(self.x)))
        self.assertTrue(same(inside, chain(other)))

    def test_errors_of_odd_classes(self):
        class NoDict:
            @property
            def __dict__(self):
                return types.MappingProxyType({"a": 1})

        class Raises:
            __slots__ = ()

            def __index__(self):
                raise KeyboardInterrupt

        for odd in (NoDict(), Raises()):
            with self.assertRaises(TypeError):
                new_cache().run("f", lambda x, o: x, self.x, odd)

    def test_an_object_that_contains_itself(self):
        def parent(n):
            made = Config(n=n)
            made.child = Config(parent=made)
            return made

        self.check(lambda i: of(lambda x, p: x * p.child.parent.n, rand(1000), parent(2 + i % 2)), keys=2,
                   is_written=False)

    @torch.no_grad()
    def test_a_change_before_an_error_under_capture(self):
        def fn(x, held):
            held.append(1)
            return x * x.sum().item()

        cache, held = new_cache(), []
        with self.assertRaisesRegex(RuntimeError, "fn changes its arguments"):
            cache.run("f", fn, self.x, held)
        self.assertEqual(held, [1])
        held = []
        cache.run("f", fn, self.x, held)
        self.assertEqual(held, [1])


class ChangesTest(Arguments):
    @torch.no_grad()
    def test_each_run_is_direct_and_right(self):
        for name, fn, make in changes():
            with self.subTest(name):
                cache = self.check(lambda i: of(fn, rand(1000), make()), captures=None, capture_after=1)
                self.assertEqual(cache.stats()["eager"], RUNS + 1)  # one is of the temporaries
                self.assertIn("fn changes its arguments", cache.explain("f", fn, rand(1000), make()))
                self.check(lambda i: of(lambda *, x, c: fn(x, c), x=rand(1000), c=make()), captures=None, cache=cache)

    @torch.no_grad()
    def test_what_a_capture_notices_first_is_raised(self):
        for name, fn, make in changes():
            with self.subTest(name):
                cache = new_cache()
                with self.assertRaisesRegex(RuntimeError, "fn changes its arguments"):
                    cache.run("f", fn, rand(1000), make())
                before = cache.stats()["eager"]
                self.check(lambda i: of(fn, rand(1000), make()), captures=None, cache=cache)
                self.assertEqual(cache.stats()["eager"], before + RUNS)

    def test_they_are_errors_from_then_on_if_the_cache_is_told_so(self):
        cache = new_cache(on_capture_failure="return_error", capture_after=1)

        def fn(x, held):
            held.append(1)
            return x * 2

        cache.run("f", fn, self.x, [])
        for _ in range(3):
            with self.assertRaisesRegex(RuntimeError, "fn changes its arguments"):
                cache.run("f", fn, self.x, [])

    def test_changes_that_fn_takes_back(self):
        def fn(x, c):
            c.append(x * 2)
            return c.pop() + x

        self.check(lambda i: of(fn, rand(1000), []))

    def test_an_object_that_every_run_changes(self):
        for capture_after in (0, 1):
            cache, mine, direct = new_cache(capture_after=capture_after), Config(n=0), Config(n=0)
            fn = lambda x, c: setattr(c, "n", c.n + 1) or x * c.n
            for i in range(8):
                wanted = fn(self.x, direct)
                try:
                    self.assertTrue(same(cache.run("f", fn, self.x, mine), wanted), i)
                except RuntimeError:
                    self.assertEqual(capture_after, 0)
                    mine.n = i + 1

    def test_arguments_that_fn_keeps(self):
        keeper = Config()
        for name, make in {
            "tensor": lambda: rand(1000), "list": lambda: [rand(1000)], "dict": lambda: {"a": rand(1000)},
            "dataclass": lambda: Plain(rand(1000)), "tuple": lambda: (rand(1000), 2),
        }.items():
            for capture_after, pools in itertools.product((0, 1), ("shared", "one_per_key")):
                with self.subTest(name, capture_after=capture_after, pools=pools):
                    cache, kept = new_cache(capture_after=capture_after, pools=pools), []

                    def keeps(x, c):
                        keeper.c = c
                        return x * 2

                    for i in range(8):
                        kept.append((rand(1000), make()))
                        self.assertTrue(same(cache.run("f", keeps, *kept[-1]), kept[-1][0] * 2), i)
                        self.assertTrue(same(keeper.c, kept[-1][1]), i)


class Tagged(torch.Tensor):
    """Its class decides what operators do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.add:
            return super().__torch_function__(torch.sub, types, args, kwargs or {})
        return super().__torch_function__(function, types, args, kwargs or {})


class NumbersList(list):
    pass


class BesideTheResultTest(Arguments):
    """What a replay does not make anew, or a graph would not compute."""

    def test_a_tensor_left_elsewhere_while_a_float_moves(self):
        for pools in ("shared", "one_per_key"):
            cache, left = new_cache(pools=pools), Config()

            def fn(x, a):
                left.y = x * a
                return x + a

            for i in range(8):
                a = number()
                self.assertTrue(same(cache.run("f", fn, self.x, a), self.x + a), (pools, i))
                self.assertTrue(same(left.y, self.x * a), (pools, i))

    def test_iterators_are_made_anew(self):
        for fn in (lambda x: (x * i for i in range(3)), lambda x: map(torch.neg, [x + 1, x + 2])):
            cache = new_cache()
            for i in range(6):
                self.assertTrue(same(list(cache.run("f", lambda x: fn(x * 2), self.x)), list(fn(self.x * 2))), i)

    def test_what_the_caller_makes_of_a_result(self):
        weight = torch.nn.Parameter(rand(4, 8))

        def adds(y):
            y += weight
            y.sum().backward()

        changes = (lambda y: y.t_(), lambda y: y.unsqueeze_(0), lambda y: y.resize_(2), lambda y: y.requires_grad_(),
                   lambda y: y.set_(torch.zeros(3, device="cuda")), adds)
        for n, change in enumerate(changes):
            cache, x = new_cache(), rand(4, 8)
            for i in range(6):
                weight.grad = None
                y = cache.run("f", lambda x: {"y": x * 2}, x)["y"]
                self.assertTrue(same(y, x * 2), (n, i))
                self.assertFalse(y.requires_grad, (n, i))
                change(y)
                self.assertTrue(change is not adds or bool((weight.grad == 1).all()), i)

    def test_a_result_that_a_later_run_replaces_is_an_error_of_backward(self):
        cache, weight = new_cache(), torch.nn.Parameter(rand(1000))
        fn = lambda x: x * 2
        for i in range(3):
            cache.run("f", fn, self.x)
        first = cache.run("f", fn, self.x) * weight
        cache.run("f", fn, self.x)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            first.sum().backward()

    def test_a_result_with_gradients_that_a_later_run_replaces(self):
        for pools in ("shared", "one_per_key"):
            cache, weight = new_cache(pools=pools), torch.nn.Parameter(rand(1000))
            fn = lambda w: w * 2
            for i in range(3):
                cache.run("f", fn, weight)
            first = cache.run("f", fn, weight).square().sum()
            second = cache.run("f", fn, weight).square().sum()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                first.backward()
            second.backward()
            self.assertTrue(same(weight.grad, weight.detach() * 8), pools)

    def test_results_that_the_backward_of_fn_needs(self):
        def detached(w):
            h = torch.sin(w)
            return (h * h).sum(), h.detach()

        def output(w):
            h = torch.sigmoid(w)
            return h.sum(), h.detach()

        def factor(w):
            h = (w > 0).float()
            return (w * h).sum(), h

        for fn, pools in itertools.product((detached, output, factor), ("shared", "one_per_key")):
            with self.subTest(fn.__name__, pools=pools):
                cache, weight = new_cache(capture_after=1, pools=pools), torch.nn.Parameter(rand(1000))
                cache.warm("f", fn, weight)
                found, wanted = cache.run("f", fn, weight), fn(weight)
                h = found[1]
                self.assertTrue(same(h, wanted[1]))
                torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss, _ in (found, wanted)))
                later = (h * weight).sum()
                cache.run("f", fn, weight)
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    later.backward()

    def test_leaves_of_one_memory(self):
        cache, base = new_cache(), rand(1000)
        for i in range(6):
            leaf = base.detach().requires_grad_()
            cache.run("f", lambda x: (x * 3).sum(), leaf).backward()
            self.assertTrue(bool((leaf.grad == 3).all()), i)

    def test_tensors_of_another_class(self):
        for copy_inputs in (False, True):
            cache, tagged = new_cache(copy_inputs=copy_inputs), self.x.as_subclass(Tagged)
            for i in range(8):
                x = tagged if i % 2 else self.x
                found = cache.run("f", lambda x: torch.add(x, 1), x)
                self.assertTrue(torch.equal(found.as_subclass(torch.Tensor), self.x - 1 if i % 2 else self.x + 1), i)
                self.assertIs(type(found), type(x))

    def test_results_made_of_a_float(self):
        for make in (lambda a: types.SimpleNamespace(a=a), lambda a: complex(a, 1), torch.tensor, lambda a: {a}):
            cache = new_cache()
            for i in range(8):
                a = number()
                y, made = cache.run("f", lambda x, a: (x * a, make(a)), self.x, a)
                self.assertTrue(same(y, self.x * a), i)
                self.assertEqual(made, make(a), i)

    def test_contents_and_attributes_of_one_container(self):
        named, plain = NumbersList(), NumbersList(["n", 2])
        named.n = 2
        cache = new_cache()
        for i in range(6):
            one = plain if i % 2 else named
            self.assertTrue(same(cache.run("f", lambda x, c: x + len(c), self.x, one), self.x + len(one)), i)

    def test_names_in_a_dict(self):
        Color = enum.Enum("Color", "RED BLUE")
        cache = new_cache()
        for i in range(6):
            x = {Color.RED: rand(1000), 0.5: rand(1000)}
            self.assertTrue(same(cache.run("f", lambda x: x[Color.RED] - x[0.5], x), x[Color.RED] - x[0.5]), i)

    def test_warm_calls_fn_directly_once(self):
        cache, fn = new_cache(capture_after=1), lambda x: x.add_(1)
        for n in range(3):
            x = torch.zeros(1000, device="cuda")
            cache.warm("f", fn, x)
            self.assertLessEqual(float(x[0]), 1, n)
            if n == 0:
                self.assertEqual((float(x[0]), cache.stats()["captures"]), (1, 1))

    def test_a_result_in_a_cycle_with_its_cache(self):
        cache = new_cache()
        for i in range(4):
            result = cache.run("f", lambda x: x * 2, self.x)
        result.cache, end = cache, weakref.ref(cache)
        del cache, result
        gc.collect()
        self.assertIsNone(end())

    def test_types_that_copies_have(self):
        cache = new_cache(copy_inputs=True)
        for i in range(6):
            x = torch.full((100,), i, dtype=torch.uint16, device="cuda")
            self.assertTrue(same(cache.run("f", lambda x: x.to(torch.float32) * 2, x), x.to(torch.float32) * 2), i)

    def test_graphed_static_and_class_methods(self):
        class Holder:
            scale = 3

            @graphcache_torch.graphed
            @staticmethod
            def static(x, y=None):
                return x * 2

            @graphcache_torch.graphed
            @classmethod
            def of_class(cls, x):
                return x * cls.scale

            negative = graphcache_torch.graphed(torch.neg)

        for i in range(4):
            x = rand(1000)
            self.assertTrue(same(Holder().static(x), x * 2), i)
            self.assertTrue(same(Holder().of_class(x), x * 3), i)
            self.assertTrue(same(Holder().negative(x), -x), i)
        self.assertTrue(same(graphcache_torch.graphed(lambda x, **named: x * named["self"])(x, self=2), x * 2))


class ResultsTest(Arguments):
    def test_they_are_copied(self):
        for name, fn in results():
            for pools in ("shared", "one_per_key"):
                with self.subTest(name, pools=pools):
                    is_empty = name == "no tensors"
                    self.check(lambda i: of(fn, rand(1000)), captures=4 if pools == "shared" and not is_empty else None,
                               pools=pools)

    def test_arguments_among_them(self):
        for name, fn in {
            "list": lambda c: c["l"], "dict": lambda c: {**c, "y": c["x"] * 2},
            "object": lambda c: (c["o"], c["x"] * 2),
            "dataclass": lambda c: dataclasses.replace(c["p"], x=c["x"] * 3),
        }.items():
            with self.subTest(name):
                self.check(lambda i: of(fn, {"x": rand(1000), "l": [rand(1000)], "o": Config(n=2),
                                             "p": Plain(rand(1000))}), captures=None)

    def test_arguments_are_those_of_the_run(self):
        cache, fn = new_cache(), lambda x: (x.mul_(2), {"x": [x]})
        x = rand(1000)
        first = torch.empty(0, device="cuda").set_(x)
        for _ in range(2):
            cache.run("f", fn, first)
        first.set_(torch.zeros_like(x))  # as when its caller empties its storage, and `x` gets the memory
        for _ in range(3):
            wanted = x * 2
            result, of_dict = cache.run("f", fn, x)
            self.assertIs(result, x)
            self.assertIs(of_dict["x"][0], x)
            self.assertTrue(torch.equal(x, wanted))

    def test_one_tensor_twice(self):
        def fn(x):
            y = x * 2
            return y, {"y": y}, x, [x]

        for options in ({}, {"pools": "one_per_key"}, {"copy_inputs": True}):
            cache = new_cache(**options)
            for i in range(6):
                x = rand(1000)
                y, of_dict, first, (second,) = cache.run("f", fn, x)
                self.assertIs(y, of_dict["y"], (options, i))
                self.assertIs(first, second, (options, i))
                self.assertTrue(same((y, first), (x * 2, x)), (options, i))


class GraphedTest(Arguments):
    def test_functions(self):
        @graphcache_torch.graphed(capture_after=0, max_executables=8)
        def step(x, *, scale=1.0, key=None):
            """A step."""
            return x * scale if key is None else x * scale + key["fn"]

        for keys in (1, 2):
            for i in range(RUNS):
                given = {"scale": number(), **({"key": {"fn": rand(1000)}} if keys == 2 else {})}
                x = rand(1000)
                self.assertTrue(same(step(x, **given), step.__wrapped__(x, **given)), i)
        stats = step.cache.stats()
        self.assertLessEqual(stats["captures"], 8)
        self.assertEqual((stats["eager"], stats["replayed"] + stats["patched"] >= 12), (0, True), stats)
        self.assertEqual((step.__name__, step.__doc__), ("step", "A step."))
        self.assertEqual(inspect.signature(step), inspect.signature(step.__wrapped__))

    def test_without_options(self):
        step = graphcache_torch.graphed(keywords)
        for i in range(RUNS):
            self.assertTrue(same(step(self.x, scale=2.0 + i), keywords(self.x, scale=2.0 + i)))
        self.assertIsInstance(step.cache, graphcache_torch.Cache)
        self.assertEqual(step.cache.stats()["eager"], 2)  # the second one is the first with another float
        with self.assertRaises(TypeError):
            step(self.x, no_argument=1)

    def test_one_cache_for_functions_of_one_name(self):
        cache = new_cache()

        def made(n):
            @graphcache_torch.graphed(cache=cache)
            def step(x):
                return x * n if n < 3 else x + n

            return step

        steps = [made(n) for n in range(5)]
        for i in range(8):
            for n, step in enumerate(steps):
                self.assertTrue(same(step(self.x), step.__wrapped__(self.x)), (n, i))
                self.assertIs(step.cache, cache)
        self.assertEqual(cache.stats()["captures"], 5)

    def test_methods(self):
        class Scale:
            def __init__(self, n):
                self.n = n

            @graphcache_torch.graphed(capture_after=0)
            def apply(self, x, *, shift):
                return x * self.n + shift

            @staticmethod
            @graphcache_torch.graphed
            def double(x):
                return x * 2

        class Layer(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.weight = torch.nn.Buffer(torch.full((1000,), float(n), device="cuda"))

            @graphcache_torch.graphed
            def forward(self, x, **more):
                return x * self.weight if self.training else x + self.weight

        a, layers = Scale(2), [Layer(2), Layer(3)]
        for i in range(2 * RUNS):
            a.n, x, shift = 2 + i % 2, rand(1000), rand(1000)
            self.assertTrue(same(a.apply(x, shift=shift), x * a.n + shift), i)
            self.assertTrue(same(Scale(5).apply(x, shift=shift), x * 5 + shift), i)
            self.assertTrue(same(Scale.apply(a, x, shift=shift), x * a.n + shift), i)
            self.assertTrue(same(a.double(x), x * 2), i)
            for n, layer in enumerate(layers):
                layer.train(i % 4 < 2)
                self.assertTrue(same(layer(x, a=1), x * (n + 2) if i % 4 < 2 else x + (n + 2)), (i, n))
        self.assertLessEqual(Scale.apply.cache.stats()["captures"], 12)
        self.assertEqual(list(layers[0].state_dict()), ["weight"])

    def test_modules(self):
        for cache in (None, new_cache()):
            with self.subTest(is_shared=cache is not None), torch.no_grad():
                modes = [Mode(2), Mode(3)]
                before = [mode.forward for mode in modes]
                for mode in modes:
                    graphed = graphcache_torch.graphed(mode) if cache is None else graphcache_torch.graphed(
                        cache=cache)(mode)
                    self.assertIs(graphed, mode)
                for i in range(4 * RUNS):
                    mode = modes[i % 2].train(i % 4 < 2)
                    x, given = rand(1000), {"scale": number(), "a": {"b": rand(1000)}}
                    self.assertTrue(same(mode(x, **given), before[i % 2](x, **given)), i)
                stats = modes[0].forward.cache.stats()
                self.assertGreater(stats["replayed"] + stats["patched"], RUNS // 2, stats)
                self.assertIs(modes[0].forward.cache is modes[1].forward.cache, cache is not None)
                self.assertEqual(inspect.signature(modes[0].forward), inspect.signature(before[0]))
                self.assertEqual(list(modes[0].state_dict()), ["weight"])
                for mode, forward in zip(modes, before):
                    del mode.forward
                    self.assertEqual(mode.forward, forward)

    def test_a_copy_of_a_module(self):
        """It is refused, or computes with its own weights."""
        mode, x = graphcache_torch.graphed(Mode(2)), rand(1000)
        with torch.no_grad():
            for i in range(4):
                mode(x)
            for copied in (copy.deepcopy, lambda mode: pickle.loads(pickle.dumps(mode))):
                try:
                    other = copied(mode)
                except (TypeError, AttributeError, pickle.PicklingError):
                    continue
                other.weight.fill_(7)
                for i in range(4):
                    self.assertTrue(same(other(x).logits, x * 7), i)
                    self.assertTrue(same(mode(x).logits, x * 2), i)

    def test_a_graphed_module_in_a_graphed_module(self):
        inner = graphcache_torch.graphed(torch.nn.Linear(64, 64, device="cuda"))
        outer = graphcache_torch.graphed(torch.nn.Sequential(inner, torch.nn.ReLU()))
        with torch.no_grad():
            for i in range(RUNS):
                x = rand(64, 64)
                self.assertTrue(same(outer(x), F.linear(x, inner.weight, inner.bias).relu()), i)


def copied():
    """Functions, what makes their arguments, and how many keys these are."""
    layer = torch.nn.Linear(64, 64, device="cuda")
    views = rand(100)
    conjugate = torch.complex(rand(100), rand(100)).conj()
    expanded, needs_gradient = rand(1, 100).expand(64, 100), rand(64, 100).requires_grad_()
    square = lambda *types: [(lambda t: lambda: (rand(64, 100).mul(50).to(t),))(t) for t in types]
    yield "topk", lambda x: x.topk(5), [lambda: (rand(64, 100),)]
    yield "sort", lambda x: x.sort(), [lambda: (rand(64, 100),)]
    yield "cat", lambda xs: torch.cat(xs, 1) * 2, [lambda: ([rand(64, 100), rand(64, 28)],)]
    yield "stack", lambda x, y: torch.stack((x, y)), [lambda: (rand(64, 100), rand(64, 100))]
    yield "reductions", lambda x: (x.sum(), x.var(0), x.max(1)), [lambda: (rand(64, 100),)]
    yield "index", lambda x, i: x[i], [lambda: (rand(64, 100), torch.randint(64, (10,), device="cuda"))]
    yield "convolution", lambda x, w: F.conv2d(x, w), [lambda: (rand(4, 8, 32, 32), rand(16, 8, 3, 3))]
    yield "module", layer, [lambda: (rand(64, 64),)]
    yield "strided", lambda x, y: x * y, [lambda: (rand(64, 200)[:, ::2], rand(100, 64).t())]
    yield "channels last", lambda x: x * 2, [lambda: (rand(2, 8, 4, 4).to(memory_format=torch.channels_last),)]
    yield "conjugate", lambda z: z * 2, [lambda: (conjugate,)]
    yield "no elements", lambda x, y: (x * 2, y * 3), [lambda: (rand(0, 3), rand(100))]
    yield "no dimensions", lambda x, y: x * y, [lambda: (rand(1000), torch.rand((), device="cuda"))]
    yield "expanded", lambda x, y: x * y, [lambda: (expanded, rand(64, 100))]
    yield "requires_grad", lambda x, y: x * y, [lambda: (needs_gradient, rand(64, 100))]
    yield "one tensor twice", lambda x, y: torch.sin(x) * y, [lambda: (rand(100),) * 2, lambda: (rand(100), rand(100))]
    yield "views of one tensor", lambda x, y: x * 1 + y, [lambda: (views[:64], views[36:])]
    yield "inputs as results", lambda x, y: (x, y[5:], x + y), [lambda: (rand(100), rand(100))]
    yield "containers", lambda p, *, d: ModelOutput(p.x.sort()[0], d["a"][0] + p.scale), [
        lambda: (Plain(rand(100), 0.5), {"d": {"a": [rand(100)]}})]
    yield "shapes", lambda x: x.cumsum(-1), [(lambda n: lambda: (rand(n, 8),))(n) for n in (1, 4, 9)]
    yield "types", lambda x: x.sort()[0], square(
        torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool)
    yield "types that are copied one by one", lambda x: x.view(torch.uint8) * 2, [
        *square(torch.complex32, torch.float8_e4m3fn, torch.float8_e8m0fnu),
        lambda: (rand(64, 100).abs().mul(50).to(torch.uint8).view(torch.float4_e2m1fn_x2),)]


class CopyInputsTest(Arguments):
    def check_copied(self, **options):
        for name, fn, makes in copied():
            def make(i):
                *args, last = makes[i % len(makes)]()
                return of(fn, *args, **last) if isinstance(last, dict) else of(fn, *args, last)

            with self.subTest(name, **options):
                self.check(make, len(makes), is_written=False, cache=new_cache(copy_inputs=True, **options),
                           captures=None if "capture_after" in options else 1)

    def test_one_capture_for_all_addresses(self):
        self.check_copied()
        self.check_copied(pools="one_per_key")

    def test_the_first_run_is_direct(self):
        self.check_copied(capture_after=1)

    def test_a_float_that_is_clamped(self):
        self.check(lambda i: of(lambda x, a: x.clamp(-a, a), rand(1000), number()), captures=None, copy_inputs=True)

    def test_arguments_that_fn_writes(self):
        for name, fn in {
            "add_": lambda x, y: x.add_(1) * y, "out": lambda x, y: torch.sin(x, out=y), "a view": lambda x, y: x[5:].zero_(),
            "copy_": lambda x, y: y.copy_(x) + x,
        }.items():
            for capture_after in (0, 1):
                with self.subTest(name, capture_after=capture_after):
                    cache = new_cache(copy_inputs=True, capture_after=capture_after)
                    self.check(lambda i: of(fn, rand(1000), rand(1000)), captures=None, cache=cache)
                    self.assertGreaterEqual(cache.stats()["eager"], RUNS)
                    with torch.no_grad():
                        self.assertIn("fn writes into an argument", cache.explain("f", fn, rand(1000), rand(1000)))

    def test_a_list_that_an_argument_holds_as_well(self):
        def fn(given, holder):
            return given[0] * 2 + holder.given[0]

        for order in (lambda given, holder: (given, holder), lambda given, holder: {"holder": holder, "given": given}):
            cache = new_cache(copy_inputs=True)
            for _ in range(RUNS):
                x = rand(1000)
                given = [x]
                args = order(given, types.SimpleNamespace(given=given))
                found = cache.run("f", fn, **args) if isinstance(args, dict) else cache.run("f", fn, *args)
                self.assertTrue(same(found, x * 3))
            self.assertEqual(cache.stats()["capture_failures"], 0)

    def test_arguments_are_not_kept(self):
        cache, gone = new_cache(copy_inputs=True), []
        for _ in range(6):
            x = rand(1000)
            gone.append(weakref.ref(x))
            cache.run("f", torch.sort, x)
        del x
        self.assertEqual([ref() for ref in gone], [None] * 6)

    def test_a_thread_that_waits_for_the_first_capture_of_another_one(self):
        cache, other = new_cache(copy_inputs=True), rand(1000)
        found, threads = [], []

        def run():
            found.append(cache.run("f", fn, other).clone())

        def fn(x):
            if torch.cuda.is_current_stream_capturing() and not threads:
                threads.append(threading.Thread(target=run))
                threads[0].start()
                time.sleep(0.3)  # it has made buffers of its own then
            return chain(x)

        cache.run("f", fn, self.x)
        threads[0].join(20)
        self.assertTrue(same(found[0], chain(other)))
        self.assertTrue(same(cache.run("f", fn, self.x), chain(self.x)))
        self.assertEqual(cache.stats()["captures"], 1)

    def test_a_backward_behind_the_run_that_captures(self):
        for pools in ("shared", "one_per_key"):
            for capture_after in (0, 1):
                cache = new_cache(copy_inputs=True, pools=pools, capture_after=capture_after)
                w = rand(1000).requires_grad_()
                fn = lambda x: (x * w).sum()
                for i in range(1 + capture_after):
                    x = rand(1000)
                    found = cache.run("f", fn, x)
                    self.assertTrue(same(torch.autograd.grad(found, w, retain_graph=True), (x,)))
                cache.run("f", fn, rand(1000))
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    found.backward()
                self.assertEqual(cache.stats()["captures"], 1)

    def test_a_copy_that_pytorch_does_not_have(self):
        cache = new_cache(copy_inputs=True)
        x = torch.zeros(64, 200, dtype=torch.uint8, device="cuda").view(torch.uint4)[:, ::2]
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "PyTorch cannot copy the arguments for the graph") as raised:
                cache.run("f", lambda x: x.view(torch.uint8) * 2, x)
            for text in ("a listener threw", "Exception raised from"):
                self.assertNotIn(text, str(raised.exception))
        self.assertTrue(same(cache.run("f", chain, self.x), chain(self.x)))

    def test_a_result_that_is_the_next_argument(self):
        cache, found, wanted = new_cache(copy_inputs=True), self.x, self.x
        for i in range(8):
            found, wanted = cache.run("f", lambda x: x.cumsum(0).sin(), found), wanted.cumsum(0).sin()
            self.assertTrue(same(found, wanted), i)
        self.assertEqual(cache.stats()["captures"], 1)


class OptionsTest(Arguments):
    def test_a_run_in_a_foreign_capture(self):
        for pools, is_known in itertools.product(("shared", "one_per_key"), (False, True)):
            with self.subTest(pools, is_known=is_known):
                cache, x = new_cache(inline_in_foreign_capture=True, pools=pools), rand(1000)
                graph = torch.cuda.CUDAGraph()
                for _ in range(3 * is_known):
                    cache.run("f", keywords, x, shift=x)
                with torch.cuda.graph(graph):
                    found = cache.run("f", keywords, x, shift=x) * 2
                for i in range(3):
                    x.add_(1)
                    graph.replay()
                    self.assertTrue(same(found, keywords(x, shift=x) * 2), i)
                self.assertEqual(cache.stats()["inlined"], 1)
                self.assertTrue(same(cache.run("f", keywords, x, shift=x), keywords(x, shift=x)))

    def test_a_foreign_capture_is_refused(self):
        for is_known in (False, True):
            cache, x = new_cache(pools="one_per_key"), rand(1000)
            for _ in range(3 * is_known):
                cache.run("f", chain, x)
            with self.assertRaises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                cache.run("f", chain, x)
            self.assertTrue(same(cache.run("f", chain, x), chain(x)))

    def test_captures_that_break_are_raised(self):
        for capture_after in (0, 1):
            cache, x = new_cache(on_capture_failure="return_error", capture_after=capture_after), rand(1000)

            def asks(x):
                return x.add_(1) * x.sum().item()

            for i in range(3):
                before = x.clone()
                if i < capture_after:
                    self.assertTrue(same(cache.run("asks", asks, x), asks(before)))
                else:
                    with self.assertRaises(RuntimeError):
                        cache.run("asks", asks, x)
                    self.assertTrue(same(x, before))
                self.assertTrue(same(cache.run("chain", chain, x), chain(x)))
            self.assertGreaterEqual(cache.stats()["capture_failures"], 1)

    def test_all_combinations(self):
        for share, pools, copies, after, diagnose in itertools.product(
                ("never", "when_full", "always"), ("shared", "one_per_key"), (False, True), (0, 1), (False, True)):
            options = dict(share=share, pools=pools, copy_inputs=copies, capture_after=after, diagnose=diagnose)
            with self.subTest(str(options)):
                self.check(lambda i: of(lambda d, *, s: ModelOutput(d["x"].sort()[0] * s, [chain(d["x"])]),
                                        {"x": rand(100 + i % 3)}, s=number()),
                           keys=3, captures=None, keys_runs=4, max_executables=2, **options)


class ListenersTest(Arguments):
    def events_of(self, use, *more, **options):
        events = []
        use(new_cache(listeners=[*more, events.append], **options))
        gc.collect()
        for event in events:
            self.assertIn(event.kind, EVENTS)
            self.assertIsInstance(event.entry, int)
            self.assertIsInstance(event.graph, int)
            self.assertGreaterEqual(event.seconds, 0.0)
            self.assertIsInstance(event.error, str)
            self.assertIsInstance(event.text, str)
            self.assertTrue(event.outcome is None or event.kind == "run" and isinstance(event.outcome, str))
        return events

    def test_kinds(self):
        def use(cache):
            for size in 3 * [100, 200, 300]:
                for _ in range(12):
                    cache.run("chain", chain, self.x[:size])
            torch.cuda.synchronize()
            cache.erase("chain", chain, self.x[:100])

        events = self.events_of(use, max_executables=1, share="never")
        kinds = [event.kind for event in events]
        for kind in ("capture", "instantiate", "lend", "destroy_executable", "destroy_graph", "erase", "run"):
            self.assertIn(kind, kinds)
        self.assertTrue(all(event.seconds > 0 and not event.error for event in events if event.kind == "capture"))
        self.assertIn("instantiated", [event.outcome for event in events])

    def test_a_capture_that_breaks(self):
        events = self.events_of(lambda cache: cache.run("asks", lambda x: x * x.sum().item(), self.x))
        self.assertTrue(any(event.kind == "capture" and event.error for event in events))
        self.assertTrue(any(event.kind == "message" and event.text for event in events))

    def test_exceptions(self):
        def fails(event):
            raise LookupError("mine")

        caught, before = [], sys.unraisablehook
        sys.unraisablehook = lambda what: caught.append(what.exc_type)
        try:
            use = lambda cache: self.assertTrue(same(cache.run("chain", chain, self.x), chain(self.x)))
            self.assertTrue(self.events_of(use, fails))
        finally:
            sys.unraisablehook = before
        self.assertEqual(set(caught), {LookupError})

    def test_a_method_that_two_caches_share(self):
        class Follower:
            def __init__(self):
                self.captures = 0

            def follow(self, event):
                self.captures += event.kind == "capture"

        follower = Follower()
        dead = weakref.ref(follower)
        caches = [new_cache(listeners=(follower.follow,)) for _ in range(2)]
        for cache in caches:
            cache.run("chain", chain, self.x)
        self.assertEqual(follower.captures, 2)
        del follower
        gc.collect()
        self.assertEqual(dead().captures, 2)
        caches.clear()
        del cache
        gc.collect()
        self.assertIsNone(dead())


if __name__ == "__main__":
    unittest.main()
