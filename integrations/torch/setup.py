# Builds the package graphcache_torch into a folder, or installs it:
#
#   python3 setup.py build --build-lib FOLDER        pip install --no-build-isolation ./integrations/torch
#
# Needs PyTorch for CUDA, a C++20 compiler, and an installed graphcache that pkg-config finds.
import glob
import os
import subprocess
import sysconfig

from setuptools import setup
import torch
from torch.utils import cpp_extension


def pkg_config(what):
    return subprocess.check_output(["pkg-config", what, "graphcache"], text=True).split()


def cuda_file(pattern):
    """A file of the CUDA runtime, of a toolkit or of the package that PyTorch has installed."""
    homes = [os.environ.get("CUDA_HOME"), cpp_extension.CUDA_HOME, "/usr/local/cuda"]
    homes += glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "cu*"))
    homes += glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "cuda_runtime"))
    for home in filter(None, homes):
        for found in sorted(glob.glob(os.path.join(home, pattern))):
            return found
    raise SystemExit(f"graphcache_torch: no {pattern} in a CUDA toolkit or PyTorch's packages: set CUDA_HOME")


if torch.version.cuda is None:
    raise SystemExit("graphcache_torch: this PyTorch is built without CUDA")

version = pkg_config("--modversion")[0]
major = torch.version.cuda.split(".")[0]
setup(
    name="graphcache_torch",
    version=version,
    description="CUDA graphs for PyTorch, cached by launch configuration",
    license="Apache-2.0",
    packages=["graphcache_torch"],
    package_dir={"": "python"},
    ext_modules=[
        cpp_extension.CppExtension(
            "graphcache_torch._C",
            ["module.cc"],
            include_dirs=[os.path.dirname(os.path.abspath(__file__)), os.path.dirname(cuda_file("include/cuda_runtime_api.h"))],
            libraries=["c10_cuda", "torch_cuda"],
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-Wall", *pkg_config("--cflags")],
            extra_link_args=[*pkg_config("--libs"), cuda_file(f"lib*/libcudart.so.{major}"), "-s"],
        )
    ],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
    install_requires=["torch"],
)
