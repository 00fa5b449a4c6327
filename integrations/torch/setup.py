# Builds the package graphcache_torch, which contains the library, for the PyTorch of this Python:
#
#   pip install --no-build-isolation ./integrations/torch        python3 setup.py build --build-lib FOLDER
#
# Or makes the source package, which also contains Abseil's sources and the device code, made by nvcc:
#
#   python3 setup.py sdist
import importlib.util
from pathlib import Path
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.sdist import sdist

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    raise SystemExit(
        f"graphcache_torch: {error}. The package is compiled for the PyTorch that is installed: install PyTorch, "
        "setuptools and ninja, and then call pip with --no-build-isolation"
    ) from error

if torch.version.cuda is None:
    raise SystemExit("graphcache_torch: this PyTorch is built without CUDA")

here = Path(__file__).resolve().parent
root = here if (here / "lib").is_dir() else here.parents[1]  # a source package, or a checkout
cuda_major = torch.version.cuda.split(".")[0]
torch_series = ".".join(torch.__version__.split(".")[:2])  # PyTorch keeps its binary interface within a series.
version_header = (root / "include/graphcache/version.h").read_text()
version = ".".join(re.findall(r"define GRAPHCACHE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", version_header))


def listed(file, name, pattern):
    """What matches in the list NAME = ... of a file of Meson."""
    return re.findall(pattern, re.search(rf"^{name} = [^\])}}]*", (root / file).read_text(), re.MULTILINE)[0])


# --- CUDA: a toolkit, or else the packages of PyPI, of the major version that PyTorch has.


def cuda_homes():
    homes = [Path(cpp_extension.CUDA_HOME)] if cpp_extension.CUDA_HOME is not None else []
    packages = importlib.util.find_spec("nvidia")
    for folder in packages.submodule_search_locations if packages else []:
        homes += [Path(folder, f"cu{cuda_major}"), *sorted(Path(folder).glob("[!_]*/"))]
    for home in homes:
        header = home / "include/cuda_runtime_api.h"
        if not header.exists() or re.search(rf"define CUDART_VERSION +{cuda_major}\d\d\d\b", header.read_text()):
            yield home


def cuda_file(pattern):
    """The first such file, or None."""
    return next((file for home in cuda_homes() for file in sorted(home.glob(pattern))), None)


def needed_from_cuda(*patterns):
    for pattern in patterns:
        if cuda_file(pattern) is None:
            parts = "nvcc,cccl" if cuda_major == "12" else "crt,cccl"
            raise SystemExit(
                f"graphcache_torch: no {pattern} of CUDA {cuda_major}: set CUDA_HOME to a toolkit, or "
                f"pip install 'cuda-toolkit[{parts}]=={torch.version.cuda}.*'"
            )


def write_device_code(folder):
    """Writes the device code as headers, as lib/meson.build does. Returns whether there is any, which takes an nvcc."""
    folder.mkdir(exist_ok=True)
    nvcc = cuda_file("bin/nvcc")
    embed = root / "lib/embed"
    is_there = True
    for name, kind in listed("lib/meson.build", "device_sources", r"'([a-z_/]+)': '([a-z]+)'"):
        source = root / "lib" / f"{name}.cu"
        image = folder / f"{source.stem}_image.h"
        newest = max(file.stat().st_mtime for file in (source, source.with_suffix(".h"), embed))
        if not image.exists() or image.stat().st_mtime < newest:
            scratch = folder / source.stem
            subprocess.check_call([embed, nvcc or "", kind, source, image, scratch, image.stem])
            shutil.rmtree(scratch, ignore_errors=True)
        is_there = is_there and "] = {};" not in image.read_text()
    return is_there


# --- Abseil: the sources of the source package or of `meson subprojects download abseil-cpp`, or else the system's.

abseil = max(root.glob("subprojects/abseil-cpp-*/"), default=None)
abseil_parts = ["base", "container", "crc", "debugging", "hash", "numeric", "profiling"]
abseil_parts += ["status", "strings", "synchronization", "time", "types"]
abseil_tests = ["*_test*", "*test_*", "*testing*", "*benchmark*", "*mock*", "*matchers*", "*_gentables*", "*print_hash*"]


def pkg_config(what):
    modules = [f"absl_{module}" for module in listed("meson.build", "absl_modules", r"'(\w+)'")]
    try:
        return subprocess.check_output(["pkg-config", what, *modules], text=True).split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            "graphcache_torch: no Abseil: install the source package instead, or libabsl-dev, or call "
            "`meson subprojects download abseil-cpp` in the checkout"
        ) from error


# --- The package.


class BuildExtension(cpp_extension.BuildExtension):
    """Compiles the library as a part of the extension."""

    def build_extensions(self):
        cudart = f"lib*/libcudart.so.{cuda_major}"
        needed_from_cuda(cudart, "include/crt/host_defines.h", "include/**/nv/target", "include/cusparse.h")
        scratch = Path(self.build_temp).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        device_code = root / "lib"
        if not (device_code / "updater_image.h").exists():
            device_code = scratch / "device_code"
            if not write_device_code(device_code):
                print("graphcache_torch: no nvcc: the library will have no device code", file=sys.stderr)
        exports = scratch / "exports"
        exports.write_text("{ global: PyInit__C; local: *; };\n")

        extension = self.extensions[0]
        sources = listed("lib/meson.build", "graphcache_sources", r"'(\S+\.cc)'")
        extension.sources += [str(root / "lib" / source) for source in sources]
        folders = [root / "include", root / "lib", device_code]
        if abseil is not None:
            folders.append(abseil)
            for part in abseil_parts:
                files = sorted((abseil / "absl" / part).rglob("*.cc"))
                extension.sources += [str(file) for file in files if not any(file.match(test) for test in abseil_tests)]
        else:
            extension.extra_compile_args += pkg_config("--cflags")
            extension.extra_link_args += pkg_config("--libs")
        folders += [home / folder for home in cuda_homes() for folder in ("include", "include/cccl")]
        extension.include_dirs[:0] = [str(folder) for folder in folders if folder.is_dir()]
        extension.extra_link_args += [str(cuda_file(cudart)), f"-Wl,--version-script={exports}"]
        super().build_extensions()


class SourcePackage(sdist):
    """Adds what the package is built from, in the same places as in a checkout."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if abseil is None:
            raise SystemExit("graphcache_torch: call `meson subprojects download abseil-cpp` first")
        ignore = shutil.ignore_patterns("hostrt", "export", "pch", *abseil_tests)
        for folder in root / "include", root / "lib", abseil / "absl":
            shutil.copytree(folder, Path(base_dir, folder.relative_to(root)), ignore=ignore, dirs_exist_ok=True)
        for file in root / "LICENSE", abseil / "LICENSE":
            shutil.copy(file, Path(base_dir, file.relative_to(root)))
        if not write_device_code(Path(base_dir, "lib")):
            raise SystemExit("graphcache_torch: no nvcc with libcudadevrt.a, which makes the device code")


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
            include_dirs=[str(here)],
            libraries=["c10_cuda", "torch_cuda", "dl"],
            # Hidden, because another Abseil or graphcache of the process must not mix with these.
            extra_compile_args=["-std=c++20", "-O3", "-g0", "-DNDEBUG", "-pthread"]
            + ["-fvisibility=hidden", "-ffunction-sections"],
            extra_link_args=["-pthread", "-s", "-Wl,--gc-sections"],
        )
    ],
    cmdclass={"build_ext": BuildExtension, "sdist": SourcePackage},
    install_requires=[f"torch=={torch_series}.*"],
)
