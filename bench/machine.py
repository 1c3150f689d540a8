"""The machine and the programs that the figures depend on. Names no host and no path."""

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from statistics import median

from .process import ROOT, BenchError, program, run

# The load tools: the option for the version, and where the version is in the output.
TOOLS = {
    "wrk": ("-v", r"(\d\S*) \["),
    "pgbench": ("--version", r"\) (\S+)"),
    "mariadb-slap": ("--version", r"Distrib ([^,\s]+)"),
}


def describe(data: Path) -> dict[str, str]:
    """The machine. An error if the data directory is in memory: a commit would cost nothing."""
    file_system = run(["df", "--output=fstype", str(data)]).split()[1]
    if file_system in ("tmpfs", "ramfs"):
        raise BenchError(f"{data} is in memory: name a directory on a disk with --data")
    disk = f"{file_system}, 4 KiB synced in {_sync_milliseconds(data):.2f} ms (median)"
    return processor() | {"disk": disk}


def processor() -> dict[str, str]:
    """The machine without its disk."""
    models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = models[0] if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{name}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "other load": f"load average {os.getloadavg()[0]:.1f} in the minute before",
    }


def _sync_milliseconds(directory: Path) -> float:
    """The median time to sync 4 KiB to the disk, of 100 times. Each commit waits for a sync."""
    path = directory / "sync"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(4096))
            start = time.monotonic()
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - start)
    path.unlink()
    return median(times) * 1e3


def tools() -> dict[str, str]:
    """The versions of the load tools."""
    versions = {}
    for name, (option, pattern) in TOOLS.items():
        # Not `run`, because `wrk -v` exits with 1.
        shown = subprocess.run([program(name), option], capture_output=True, text=True, check=False)
        versions[name] = re.findall(pattern, shown.stdout)[0]
    return versions


def commit() -> str:
    """The commit of the working copy, with `-dirty` if a file differs from it."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        return run(command).strip()
    except BenchError:
        return "unknown"
