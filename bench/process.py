"""Starting and stopping what the bench needs: private processes, each known by its own handle."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class BenchError(Exception):
    """The bench cannot go on; the text is for whoever started it."""


def program(name: str, package: str) -> str:
    """Where a program is. Debian keeps servers where not everybody looks."""
    places = [os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]
    places += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which(name, path=":".join(places))
    if found is None:
        raise BenchError(f"{name} is missing: apt-get install --no-install-recommends {package}")
    return found


def server_user() -> str:
    """MariaDB and PostgreSQL refuse to run as root, and nobody else has to."""
    return "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name


def as_server(end: signal.Signals = signal.SIGTERM) -> list[str]:
    """The beginning of a command for a server: as a user without rights, and with an end of its own
    should the bench be killed."""
    command = [program("setpriv", "util-linux"), f"--pdeathsig={end.name.removeprefix('SIG')}"]
    if os.getuid() == 0:
        group = pwd.getpwnam("nobody").pw_gid
        command += ["--reuid=nobody", f"--regid={group}", "--clear-groups"]
    return [*command, "--"]


def server_directory(path: Path) -> Path:
    """A new directory that servers may write to."""
    path.mkdir()
    if os.getuid() == 0:
        shutil.chown(path, "nobody")
    return path


class Process:
    """A process of ours, in a session of its own: a Ctrl-C is the bench's to answer."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        end: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.log = log
        self._end = end
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory or log.parent,
                start_new_session=True,
            )

    def runs(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, answers: Callable[[], bool], seconds: float = 60) -> None:
        """Waits until it answers; else it is stopped, and the error has the end of its log."""
        try:
            self._wait_until(answers, seconds)
        except BaseException:
            self.stop()
            raise

    def _wait_until(self, answers: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not answers():
            if not self.runs():
                raise BenchError(f"{self.name} ended; the end of its log:\n{self._log_end()}")
            if time.monotonic() > deadline:
                late = f"{self.name} is not ready after {seconds:.0f} s; the end of its log:"
                raise BenchError(f"{late}\n{self._log_end()}")
            time.sleep(0.05)

    def stop(self, seconds: float = 30) -> None:
        """Asks it to end, and makes it. Returns when it is gone."""
        if self.runs():
            self._process.send_signal(self._end)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])


def run(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a command to its end and returns what it printed. The time is a bound, not a wait."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{name} did not end within {seconds:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise BenchError(f"{name} failed with exit code {done.returncode}:\n{said[-2000:]}")
    return done.stdout


def listens(port: int) -> bool:
    """Whether anybody listens on a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False
