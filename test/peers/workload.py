"""The work and measurements of workload.h, for the ways in Python."""
import json
import time

KEYS, KERNELS, BLOCK = 64, 200, 256
RUNS_TO_SETTLE, BATCHES, IN_BATCH, RUNS_IN_TOTAL = 1280, 500, 4, 2000


def order():
    """Keys in the random order of workload.h."""
    state = 1
    while True:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        yield (state >> 16) % KEYS


def measure(way, version, device, run, wait, used_mib):
    """Runs everything. Returns the figures as a line of JSON, and how often each key ran."""
    runs = [0] * KEYS

    def run_key(key):
        run(key)
        runs[key] += 1

    used = used_mib()
    began = time.perf_counter()
    for key in range(KEYS):
        run_key(key)
    wait()
    start_up = time.perf_counter() - began
    used = used_mib() - used

    keys = order()
    for _ in range(RUNS_TO_SETTLE):
        run_key(next(keys))
    wait()

    host = []
    for _ in range(BATCHES):
        for _ in range(IN_BATCH):
            key = next(keys)
            called = time.perf_counter_ns()
            run(key)
            host.append((time.perf_counter_ns() - called) / 1000)
            runs[key] += 1
        wait()
    host.sort()
    began = time.perf_counter()
    for _ in range(RUNS_IN_TOTAL):
        run_key(next(keys))
    wait()
    total = (time.perf_counter() - began) / RUNS_IN_TOTAL
    figures = {
        "way": way, "version": version, "device": device, "start_up_ms": start_up * 1e3, "device_mib": used,
        "host_mean_us": sum(host) / len(host), "host_median_us": host[len(host) // 2],
        "host_p99_us": host[len(host) * 99 // 100], "total_us": total * 1e6,
    }  # fmt: skip
    return json.dumps(figures), runs
