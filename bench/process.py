"""Starts, watches and stops the processes of a bench. Each process is known by its own handle."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = time.monotonic()
# The programs that a bench needs, and their Debian packages.
PACKAGES = {
    "wrk": "wrk",
    "setpriv": "util-linux",
    "mariadb": "mariadb-client",
    "mariadb-slap": "mariadb-client",
    "pgbench": "postgresql",
    "psql": "postgresql-client",
}


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
        package = PACKAGES[name]
        raise BenchError(f"{name} is missing: apt-get install --no-install-recommends {package}")
    return found


class Process:
    """A child process in its own session: Ctrl-C reaches only the bench, which then stops it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        stdout: int | None = None,
    ) -> None:
        self._name = Path(command[0]).name
        self._log = log
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                command,
                # `testkit up` ends when this pipe closes, even if the bench is killed.
                stdin=subprocess.PIPE,
                stdout=stdout or output,
                stderr=output,
                env=environment,
                start_new_session=True,
                text=True,
            )

    def runs(self) -> bool:
        return self.child.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not is_ready():
            if not self.runs() or time.monotonic() > deadline:
                raise self.error(f"is not ready after {seconds:.0f} s" if self.runs() else "ended")
            time.sleep(0.05)

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
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{name} did not end within {seconds:.0f} s") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise BenchError(f"{name} failed with exit code {done.returncode}:\n{output[-2000:]}")
    return done.stdout
