"""CUDA graphs for PyTorch, cached by launch configuration."""

import torch  # noqa: F401: it loads the libraries that _C needs

from ._C import Cache, __version__

Cache.__module__ = __name__

__all__ = ["Cache", "__version__"]
