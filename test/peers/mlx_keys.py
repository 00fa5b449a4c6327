"""MLX, on the work of workload.h: mlx_keys.py mlx.

A run of a key adds 1 to the key's array 200 times, and evaluates it (mx.async_eval). MLX puts these operations into CUDA
graphs by itself, and keeps executables by the types of their nodes. Each key has its own array, because MLX's
arrays do not share memory.
"""
import subprocess
import sys

import mlx.core as mx

from workload import BLOCK, KERNELS, KEYS, measure


def of_device(field):
    """A field of nvidia-smi's output for the GPU."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.check_output(query, text=True).splitlines()[0].strip()


def used_mib():
    mx.synchronize()
    mx.clear_cache()
    return float(of_device("memory.used"))


def main():
    one = mx.array(1.0)
    arrays = [mx.zeros(BLOCK * (key + 1)) for key in range(KEYS)]
    mx.eval(arrays + [array + one for array in arrays])  # Loads the kernels.

    def run(key):
        array = arrays[key]
        for _ in range(KERNELS):
            array = array + one
        arrays[key] = array
        mx.async_eval(array)

    figures, runs = measure("mlx", f"MLX {mx.__version__}", of_device("name"), run, mx.synchronize, used_mib)
    for key in range(KEYS):
        if not mx.all(arrays[key] == KERNELS * runs[key]).item():
            sys.exit(f"mlx: the sum of key {key} is wrong")
    print(figures)


if __name__ == "__main__":
    if sys.argv[1:] != ["mlx"]:
        sys.exit(__doc__)
    main()
