"""A bench from start to end: starts the servers, runs the experiments, stops the servers."""

import os
import resource
import shutil
import socket
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from . import experiments, load, parts
from .experiments import CLIENTS, CONNECTIONS, CROWDS, Site
from .process import BenchError, run, say
from .servers import Database, MariaDb, PostgreSql, Redis, Servers
from .service import Service

SERVERS = {"mariadb": MariaDb, "postgres": PostgreSql}
DATABASES = ("sqlite", *SERVERS)
# Of each build: the replica, four more, and three nginx.
PORTS = 8
# Enough for the most connections, twice: those of the last run may still be closing.
OPEN_FILES = 2 * CROWDS[-1] + 1024


def check(plan: Namespace) -> None:
    """Finds missing builds and ports in use before anything starts."""
    for binary in (plan.binary, plan.testkit, plan.against):
        if binary and not shutil.which(binary):
            raise BenchError(f"{binary} is not a program: run `make dist`, or name another file")
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files < OPEN_FILES:
        raise BenchError(f"at most {most_files} files may be open: raise `ulimit -Hn` to {OPEN_FILES}")
    # For all processes of the bench, which inherit it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, most_files))
    for port in range(plan.port, plan.port + (2 if plan.against else 1) * PORTS):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise BenchError(f"port {port} is in use: choose another with --port")


@contextmanager
def open_site(plan: Namespace, binary: Path, number: int, name: str, state: Path) -> Iterator[Site]:
    """Starts one build of the service on new servers. `number` keeps two builds apart."""
    directory = state / f"{name}-{number}"
    directory.mkdir()
    names = ["redis", "zookeeper", *([name] if name in SERVERS else [])]
    say(f"starting {', '.join(names)}")
    with closing(Servers(plan.testkit, names, directory)) as servers:
        redis = Redis(servers.fact("redis", "url"))
        database = Database(f"sqlite://{directory / 'bench.db'}")
        if name in SERVERS:
            database = SERVERS[name](servers.fact(name, "url"))
        environment = plan.settings | {
            "DATABASE_URL": database.url, "REDIS_URL": redis.url,
            "ZOOKEEPER_CONNECT": servers.fact("zookeeper", "connect"),
        }  # fmt: skip
        settings = {
            "Redis": {"version": servers.fact("redis", "version")} | redis.settings(),
            "ZooKeeper": {"version": servers.fact("zookeeper", "version")},
            database.title: database.settings(),
        }
        port = plan.port + PORTS * number

        def launch(
            number: int, mode: str = "lab", key: str | None = None, **other: str
        ) -> Service:
            """Starts the replica with this number. Several share the cores of one machine."""
            log = directory / f"stocklock-{number}.log"
            threads = {"TOKIO_WORKER_THREADS": "1"} if number > 0 else {}
            return Service(binary, log, port + number, environment | threads | other, mode, key)

        @contextmanager
        def launch_apart(number: int, **other: str) -> Iterator[Service]:
            # A new one for each call, because several parts start deployments.
            apart = Path(mkdtemp(prefix=f"apart-{number}-", dir=directory))
            apart.chmod(0o755)
            with ExitStack() as stack:
                url = f"sqlite://{apart / 'bench.db'}"
                if name in SERVERS:
                    servers = Servers(plan.testkit, [name], apart)
                    url = stack.enter_context(closing(servers)).fact(name, "url")
                other["DATABASE_URL"] = url
                mode, key = "serve" if "AUTH" in other else "lab", None
                if other.get("AUTH") == "keys":
                    create = [str(binary), *"keys create --name bench --caller bench".split()]
                    create += ["--scopes", "read,sell,stock"]
                    key = run(create, environment=os.environ | environment | other).strip()
                service = stack.enter_context(closing(launch(number, mode, key, **other)))
                load.deduct(service, service.strategy("single-sql"), CONNECTIONS[-1], 1)
                yield service

        with closing(launch(0)) as service:
            # Fills the connection pools and the caches of prepared statements.
            load.deduct(service, service.strategy("single-sql"), CONNECTIONS[-1], 1)
            yield Site(service, database, redis, directory, settings, port, launch, launch_apart)


def measure(plan: Namespace, state: Path, builds: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Runs the chosen parts and adds them to the results of each build. Two builds take turns, and
    only the runs of the claims are done."""
    alone = len(builds) == 1
    rounds, seconds = plan.pace["rounds"], plan.pace["seconds"]
    for name in plan.databases:
        with ExitStack() as stack:
            sites = [
                (stack.enter_context(open_site(plan, binary, number, name, state)), results)
                for number, (binary, results) in enumerate(builds)
            ]
            for number in range(rounds):
                for site, results in sites if number % 2 == 0 else sites[::-1]:
                    if "direct" in plan.parts and name in SERVERS:
                        counts = [*CLIENTS, *CONNECTIONS[-1:]] if alone else CLIENTS
                        # The load tool would send the statement of this build to both databases.
                        clients = CLIENTS if alone else []
                        this = experiments.direct_round(site, seconds, number, counts, clients)
                        by_database = results["against_direct"]
                        by_database.setdefault(site.database.title, []).append(this)
            for part in parts.PARTS:
                if part in plan.parts and (name in SERVERS or part not in parts.ON_SERVERS):
                    parts.measure(part, sites, rounds, seconds)
            for site, results in sites:
                results["servers"] |= site.settings
                if "strategies" in plan.parts:
                    counts, seconds_each = plan.pace["connections"], plan.pace["table_seconds"]
                    table = experiments.strategies(site, counts, seconds_each)
                    results["tables"][site.database.title] = table
