"""Starts, watches and stops the processes of a bench. Each process is known by its own handle."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START = time.monotonic()


class BenchError(Exception):
    """The bench cannot continue. The text says why and what to do."""


def say(text: str) -> None:
    """Prints a progress message with the time since the start."""
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    print(f"bench {minutes:02}:{seconds:02} {text}", file=sys.stderr, flush=True)


def program(name: str) -> str:
    """The path of a program. Debian installs some outside of the usual search path."""
    places = [os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]
    places += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which(name, path=":".join(places))
    if found is None:
        raise BenchError(f"{name} is missing: run `scripts/services.sh bench`")
    return found


class Process:
    """A child process in its own session: Ctrl-C reaches only the bench, which then stops it."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], stdout: Any = None
    ) -> None:
        self._name = Path(command[0]).name
        self._log = log
        with log.open("ab") as output:
            # `testkit up` ends when the pipe closes, even if the bench is killed.
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stdout or output, stderr=output,
                env=environment, start_new_session=True, text=True,
            )  # fmt: skip

    def runs(self) -> bool:
        return self.child.poll() is None

    def error(self, problem: str) -> BenchError:
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        return BenchError("\n".join([f"{self._name} {problem}; the end of its log:", *lines]))

    def close(self, seconds: float = 60) -> None:
        """Sends SIGTERM, after the time limit SIGKILL. Returns when the process has ended."""
        if self.child.stdin:
            self.child.stdin.close()
        self.child.terminate()
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait(10)


def run(
    command: Sequence[str], *, seconds: float = 30, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a command to its end, for at most `seconds`. Returns its standard output."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds, env=environment, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{name} failed: {error}") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise BenchError(f"{name} failed with exit code {done.returncode}:\n{output[-2000:]}")
    return done.stdout
