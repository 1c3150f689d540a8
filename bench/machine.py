"""What the figures were measured on and with; nothing that names a host or a place on it."""

import os
import platform
import subprocess
import time
from pathlib import Path
from statistics import median

from .process import BenchError, program, run

ROOT = Path(__file__).resolve().parent.parent
# Those that lose everything with the power.
VOLATILE = ("tmpfs", "ramfs")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def file_system(directory: Path) -> str:
    """The type of file system; an error where what was written is not on a disk."""
    kind = run(["df", "--output=fstype", str(directory)], seconds=10).splitlines()[1].strip()
    if kind in VOLATILE:
        raise BenchError(
            f"{directory} is in memory ({kind}), where a durable commit costs nothing:"
            " name a directory on a disk with --data"
        )
    return kind


def sync_milliseconds(directory: Path) -> float:
    """How long 4 KiB take to the disk, the median of 100: what every commit waits for."""
    path = directory / "sync"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(4096))
            begin = time.monotonic()
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - begin)
    path.unlink()
    return median(times) * 1e3


def describe(data: Path) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    return {
        "processor": f"{processor()}, {cores} cores",
        "memory": f"{memory_gib():.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "others": f"{os.getloadavg()[0]:.1f} processes wanted a core in the minute before",
        "disk": f"{file_system(data)}, 4 KiB synced in {sync_milliseconds(data):.2f} ms (median)",
    }


def tools() -> dict[str, str]:
    """The versions of the load generators."""
    # It prints its version, and then how it is used, with the exit code of that.
    wrk = subprocess.run(
        [program("wrk", "wrk"), "-v"], capture_output=True, text=True, timeout=10, check=False
    )
    return {
        "wrk": wrk.stdout.split("[")[0].strip().removeprefix("wrk ").removeprefix("debian/"),
        "pgbench": _version([program("pgbench", "postgresql"), "--version"]),
        "mariadb-slap": _version([program("mariadb-slap", "mariadb-client"), "--version"]),
    }


def _version(command: list[str]) -> str:
    words = run(command, seconds=10).replace(",", " ").split()
    return next(word for word in words if word[0].isdigit() and word.count(".") and word != "1.0")


def commit() -> str:
    """The commit of the working copy, and whether anything was changed since."""
    try:
        name = run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], seconds=10).strip()
        changed = run(["git", "-C", str(ROOT), "status", "--porcelain"], seconds=10).strip()
    except (BenchError, FileNotFoundError):
        return "unknown"
    return f"{name}, with changes" if changed else name
