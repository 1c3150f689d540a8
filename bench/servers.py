"""The private servers of a bench. `testkit up` starts them; this module asks and configures them."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from .process import ROOT, Process, program, run

# Added to the files of deploy/: sizes for the amount of data that one bench writes.
SIZES = {
    "mariadb.cnf": "innodb_buffer_pool_size = 512M\ninnodb_log_file_size = 256M\n",
    "redis.conf": "",
}


@contextmanager
def state_directory(parent: Path | None = None) -> Iterator[Path]:
    """A directory for data and logs. The servers run as another user, who must be able to enter it and to
    read their files."""
    with TemporaryDirectory(prefix="stocklock-bench-", dir=parent) as name:
        os.umask(0o022)
        state = Path(name)
        state.chmod(0o755)
        yield state


class Servers(Process):
    """Servers on loopback with the configuration of deploy/. They end with the bench."""

    def __init__(self, testkit: Path, names: Sequence[str], directory: Path) -> None:
        configuration = directory / "deploy"
        configuration.mkdir()
        for name, sizes in SIZES.items():
            text = (ROOT / "deploy" / name).read_text()
            (configuration / name).write_text(f"{text}\n{sizes}")
        options = [f"--only={','.join(names)}", f"--config-dir={configuration}"]
        # The servers' data must be on the disk that `machine.describe` measures.
        environment = os.environ | {"TMPDIR": str(directory)}
        command = [str(testkit), "up", *options]
        super().__init__(command, directory / "testkit.log", environment, stdout=subprocess.PIPE)
        line = self.child.stdout.readline() if self.child.stdout else ""
        if not line:
            self.close()
            raise self.error("started no servers")
        self._facts = json.loads(line)

    def fact(self, server: str, name: str) -> str:
        """One value that testkit printed about a server, for example its `url`."""
        return str(self._facts[server][name])


class Database:
    """A database of the service. This class itself is SQLite, which needs no server."""

    title = "SQLite"

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self) -> dict[str, str]:
        """The version, and the settings that decide whether a commit is durable."""
        return {"version": "built in", "synchronous": "FULL"}


class Server(Database):
    """A database server with command-line clients, among them a load tool."""

    tool: str
    options: str  # of all clients
    client: str  # the command that executes a statement
    separator: str  # between its columns
    password: str  # the variable for the password; other users could read an argument
    setting: str  # the expression for a setting
    names: tuple[str, ...]  # of the settings; the first is the version

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        self.database = parts.path.removeprefix("/")
        self.environment = os.environ | {self.password: str(parts.password)}
        at = {"host": parts.hostname, "port": parts.port, "user": parts.username}
        self.client_options = self.options.format(**at).split()

    def query(self, sql: str, seconds: float = 30) -> list[list[str]]:
        name, *options = self.client.format(database=self.database).split()
        command = [program(name), *self.client_options, *options, sql]
        answer = run(command, seconds=seconds, environment=self.environment)
        return [line.split(self.separator) for line in answer.splitlines()]

    def settings(self) -> dict[str, str]:
        (row,) = self.query("SELECT " + ", ".join(map(self.setting.format, self.names)))
        return dict(zip(("version", *self.names[1:]), row, strict=True))


class MariaDb(Server):
    """MariaDB and its clients."""

    title = "MariaDB"
    tool = "mariadb-slap"
    options = "--no-defaults --protocol=tcp --skip-ssl --host={host} --port={port} --user={user}"
    client = "mariadb --batch --skip-column-names --database={database} -e"
    separator = "\t"
    password = "MYSQL_PWD"
    setting = "@@{}"
    names = ("version", "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog")


class PostgreSql(Server):
    """PostgreSQL and its clients."""

    title = "PostgreSQL"
    tool = "pgbench"
    options = "--host={host} --port={port} --username={user}"
    client = "psql -XqAt --set=ON_ERROR_STOP=1 --dbname={database} -c"
    separator = "|"
    password = "PGPASSWORD"
    setting = "current_setting('{}')"
    names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method")


class Redis:
    """A client of one Redis server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self) -> dict[str, str]:
        """The settings that decide what is on its disk."""
        words = self._command("CONFIG", "GET", "appendonly", "appendfsync").split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def scripts(self) -> int:
        """How many scripts the server has executed since its start."""
        return count_scripts(self._command("INFO", "commandstats"))

    def _command(self, *words: str) -> str:
        """Sends one command and returns the answer."""
        return run([program("redis-cli"), "-e", "-u", self.url, *words])


def count_scripts(stats: str) -> int:
    """Reads `INFO commandstats`."""
    return sum(map(int, re.findall(r"^cmdstat_(?:eval|evalsha|fcall):calls=(\d+)", stats, re.MULTILINE)))
