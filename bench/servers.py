"""The servers of one bench: private, on loopback, with the files of deploy/."""

import os
import secrets
import signal
import socket
from pathlib import Path
from typing import Protocol

from .process import (
    BenchError,
    Process,
    as_server,
    listens,
    program,
    run,
    server_directory,
    server_user,
)

ROOT = Path(__file__).resolve().parent.parent
NAME = "stocklock"
JARS = Path("/usr/share/java")


class Database(Protocol):
    """A database of the service."""

    name: str
    title: str
    url: str

    def settings(self) -> dict[str, str]:
        """What its figures depend on, its version first."""

    def stop(self) -> None:
        """Ends it, if it is a server."""


class Sqlite:
    """The database in a file, inside the service's own process."""

    name = "sqlite"
    title = "SQLite"

    def __init__(self, state: Path) -> None:
        self.url = f"sqlite://{state / 'bench.db'}"

    def settings(self) -> dict[str, str]:
        return {"version": "built in", "synchronous": "FULL"}

    def stop(self) -> None:
        """Ends with the service."""


class MariaDb:
    """MariaDB with deploy/mariadb.cnf."""

    name = "mariadb"
    title = "MariaDB"

    def __init__(self, state: Path, port: int) -> None:
        self.port = port
        self._password = secrets.token_hex(16)
        self.url = f"mysql://{NAME}:{self._password}@127.0.0.1:{port}/{NAME}"
        home = server_directory(state / self.name)
        log = state / "mariadb.log"
        configuration = _copy(ROOT / "deploy/mariadb.cnf", state)
        # As of the data directory's making, or the first start would write the log anew.
        sizes = ["--innodb-log-file-size=256M"]
        install = program("mariadb-install-db", "mariadb-server")
        run(
            [*as_server(), install, "--no-defaults", f"--datadir={home}/data", f"--tmpdir={home}",
             "--skip-test-db", "--auth-root-authentication-method=socket",
             f"--auth-root-socket-user={server_user()}", *sizes],
            seconds=120,
        )  # fmt: skip
        self._process = Process(
            self.title,
            [*as_server(), program("mariadbd", "mariadb-server"), f"--defaults-file={configuration}",
             f"--datadir={home}/data", f"--tmpdir={home}", f"--socket={home}/socket",
             f"--pid-file={home}/pid", f"--init-file={self._user_file(home)}", f"--port={port}",
             "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=512M",
             "--innodb-use-native-aio=OFF", "--performance-schema=OFF", *sizes],
            log,
        )  # fmt: skip
        # It listens once it has carried out the file.
        self._process.wait_until(lambda: listens(port))

    def _user_file(self, home: Path) -> Path:
        path = home / "init.sql"
        path.touch(mode=0o600)
        path.write_text(
            f"CREATE DATABASE {NAME};\n"
            f"CREATE USER {NAME}@'127.0.0.1' IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL ON {NAME}.* TO {NAME}@'127.0.0.1';\n"
        )
        if os.getuid() == 0:
            os.chown(path, home.stat().st_uid, -1)
        return path

    def environment(self) -> dict[str, str]:
        """For its client programs: the password, which is no argument that others could read."""
        return os.environ | {"MYSQL_PWD": self._password}

    def client_options(self) -> list[str]:
        return ["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", f"--port={self.port}",
                f"--user={NAME}", "--skip-ssl"]  # fmt: skip

    def query(self, sql: str, seconds: float = 30) -> list[list[str]]:
        client = program("mariadb", "mariadb-client")
        command = [client, *self.client_options(), "--batch", "--skip-column-names",
                   f"--database={NAME}", f"--execute={sql}"]  # fmt: skip
        answer = run(command, seconds=seconds, environment=self.environment())
        return [line.split("\t") for line in answer.splitlines()]

    def settings(self) -> dict[str, str]:
        names = ("version", "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog")
        row = self.query("SELECT " + ", ".join(f"@@{name}" for name in names))[0]
        return dict(zip(names, row, strict=True))

    def stop(self) -> None:
        self._process.stop()


class PostgreSql:
    """PostgreSQL with the settings of docker-compose.yml."""

    name = "postgres"
    title = "PostgreSQL"
    DATABASE = "postgres"  # the one that is there from the beginning

    def __init__(self, state: Path, port: int) -> None:
        self.port = port
        self._password = secrets.token_hex(16)
        self.url = f"postgres://{NAME}:{self._password}@127.0.0.1:{port}/{self.DATABASE}"
        home = server_directory(state / self.name)
        self._make(home)
        settings = ("fsync=on", "synchronous_commit=on", "max_connections=200",
                    "listen_addresses=127.0.0.1", f"unix_socket_directories={home}")  # fmt: skip
        # "Fast" shutdown: its answer to SIGTERM waits for every client to leave.
        self._process = Process(
            self.title,
            [*as_server(signal.SIGINT), program("postgres", "postgresql"), "-D", f"{home}/data",
             "-p", str(port), *(word for setting in settings for word in ("-c", setting))],
            state / "postgres.log",
            end=signal.SIGINT,
        )  # fmt: skip
        ready = [program("pg_isready", "postgresql-client"), "-q", *self.client_options()]
        self._process.wait_until(lambda: listens(port) and _succeeds(ready))

    def _make(self, home: Path) -> None:
        password = home / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        if os.getuid() == 0:
            os.chown(password, home.stat().st_uid, -1)
        # Not scram-sha-256: pgbench's time runs while it connects, and 64 of those exchanges would
        # take a good part of it.
        run(
            [*as_server(), program("initdb", "postgresql"), "-D", f"{home}/data", "-U", NAME,
             "--auth=md5", f"--pwfile={password}", "--encoding=UTF8", "--locale=C.UTF-8"],
            seconds=120,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return os.environ | {"PGPASSWORD": self._password}

    def client_options(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", NAME]

    def query(self, sql: str, seconds: float = 30) -> list[list[str]]:
        client = program("psql", "postgresql-client")
        command = [client, *self.client_options(), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
                   "-d", self.DATABASE, "-c", sql]  # fmt: skip
        answer = run(command, seconds=seconds, environment=self.environment())
        return [line.split("|") for line in answer.splitlines()]

    def settings(self) -> dict[str, str]:
        names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method")
        row = self.query("SELECT " + ", ".join(f"current_setting('{n}')" for n in names))[0]
        return dict(zip(("version", *names[1:]), row, strict=True))

    def stop(self) -> None:
        self._process.stop()


class Redis:
    """Redis with deploy/redis.conf, and room for what one bench writes."""

    def __init__(self, state: Path, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"
        home = server_directory(state / "redis")
        configuration = _copy(ROOT / "deploy/redis.conf", state)
        self._process = Process(
            "Redis",
            [*as_server(), program("redis-server", "redis-server"), str(configuration), "--bind",
             "127.0.0.1", "--port", str(port), "--dir", str(home), "--maxmemory", "2gb"],
            state / "redis.log",
        )  # fmt: skip
        self._process.wait_until(lambda: listens(port))

    def command(self, *words: str) -> str:
        """Sends one command and returns the raw answer, which must be none of an error."""
        text = f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(text.encode())
            answer = connection.recv(1 << 20).decode()
        if answer.startswith("-"):
            raise RuntimeError(f"Redis refused {' '.join(words)}: {answer.strip()}")
        return answer

    def info(self, section: str) -> dict[str, str]:
        pairs = (line.split(":", 1) for line in self.command("INFO", section).splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def used_memory(self) -> int:
        """In bytes, without what is on its way to its file."""
        info = self.info("memory")
        return int(info["used_memory"]) - int(info["mem_aof_buffer"])

    def settings(self) -> dict[str, str]:
        return {"version": self.info("server")["redis_version"]}

    def stop(self) -> None:
        self._process.stop()


class ZooKeeper:
    """One ZooKeeper server."""

    def __init__(self, state: Path, port: int) -> None:
        self.connect = f"127.0.0.1:{port}"
        self._port = port
        home = server_directory(state / "zookeeper")
        configuration = state / "zookeeper.cfg"
        configuration.write_text(
            f"tickTime=2000\ndataDir={home}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        )
        jars = ":".join(str(JARS / jar) for jar in ("zookeeper.jar", "slf4j-simple.jar"))
        self._process = Process(
            "ZooKeeper",
            [*as_server(), program("java", "zookeeper default-jre-headless"), "-Xmx128m",
             "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars,
             "org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)],
            state / "zookeeper.log",
        )  # fmt: skip
        self._process.wait_until(lambda: self._status().startswith("Zookeeper version"))

    def _status(self) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=2) as connection:
                connection.sendall(b"srvr")
                return connection.recv(4096).decode()
        except OSError:
            return ""

    def settings(self) -> dict[str, str]:
        return {"version": self._status().removeprefix("Zookeeper version: ").split("-")[0]}

    def stop(self) -> None:
        self._process.stop()


def _copy(source: Path, state: Path) -> Path:
    """A server's user must be able to read it, wherever the repository is."""
    copy = state / source.name
    copy.write_text(source.read_text())
    copy.chmod(0o644)
    return copy


def _succeeds(command: list[str]) -> bool:
    try:
        run(command, seconds=10)
    except BenchError:
        return False
    return True
