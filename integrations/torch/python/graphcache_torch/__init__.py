"""CUDA graphs for PyTorch, cached by launch configuration."""

import functools
import types

import torch

from ._C import Cache, __version__

Cache.__module__ = __name__


class _Graphed:
    """What `graphed` makes of a function."""

    def __init__(self, fn, cache, options):
        functools.update_wrapper(self, fn, updated=())
        self._key = getattr(fn, "__qualname__", type(fn).__name__)
        self._options = options if cache is None else None
        if cache is not None:
            self.cache = cache

    def __getattr__(self, name):
        # Not a functools.cached_property: up to Python 3.11 that has one lock for all objects, so a capture whose fn
        # asks for a cache would wait for a thread that makes one, which waits for the capture.
        if name != "cache":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__.setdefault("cache", Cache(**self._options))

    def __call__(self, /, *args, **kwargs):
        return self.cache.run(self._key, self.__wrapped__, *args, **kwargs)

    def __reduce__(self):
        if isinstance(self.__wrapped__, types.FunctionType):
            return self.__qualname__  # the one of the module that defines it, as of functools.lru_cache
        if self._options is None:
            raise TypeError("graphcache: what is graphed with a given cache cannot be copied or pickled")
        return _Graphed, (self.__wrapped__, None, self._options)  # with a cache of its own

    def __get__(self, instance, owner=None):
        is_method = isinstance(self.__wrapped__, (types.FunctionType, _Graphed))  # as Python does not bind others
        return types.MethodType(self, instance) if is_method and instance is not None else self


def graphed(fn=None, /, *, cache=None, **options):
    """A callable that does what fn does, by runs of a cache. For use as a decorator as well, with or without options.

        @graphcache_torch.graphed
        def step(x, *, scale): ...

    step(x, scale=2.0) is cache.run("step", fn, x, scale=2.0). `step.cache` is the cache: the one that is given, or one
    with these options, which is made at the first call. Of a torch.nn.Module, the method `forward` is replaced, and the
    module is returned: `module.forward.cache` is the cache, and `del module.forward` undoes it.
    """
    if fn is None:
        return functools.partial(graphed, cache=cache, **options)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(graphed(fn.__func__, cache=cache, **options))
    if not callable(fn):
        raise TypeError(f"graphcache: fn is a {type(fn).__name__}: it must be callable")
    if cache is not None and options:
        raise TypeError("graphcache: either a cache, or options for one")
    if isinstance(fn, torch.nn.Module):
        fn.forward = _Graphed(fn.forward, cache, options)
        return fn
    return _Graphed(fn, cache, options)


__all__ = ["Cache", "__version__", "graphed"]
