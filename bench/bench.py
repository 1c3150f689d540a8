"""One bench from start to end: servers up, experiments, servers down."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import claims, experiments
from .experiments import Pace
from .process import BenchError, listens, program
from .progress import Progress, say
from .results import Results
from .servers import Database, MariaDb, PostgreSql, Redis, Sqlite, ZooKeeper
from .service import Service, Strategy

DATABASES = ("sqlite", "mariadb", "postgres")
TOOLS = {"mariadb": "mariadb-slap", "postgres": "pgbench"}
PORTS = ("mariadb", "postgres", "redis", "zookeeper", "service")


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    binary: Path
    databases: tuple[str, ...]
    pace: Pace
    data: Path
    port: int
    settings: dict[str, str]

    def port_of(self, name: str) -> int:
        return self.port + PORTS.index(name)

    @property
    def redis_ledger(self) -> str:
        """The database behind Redis where redis-lua is held against /healthz: the one of deploy/,
        if it takes part."""
        return "mariadb" if "mariadb" in self.databases else self.databases[-1]


def check(plan: Plan) -> None:
    """Finds out at once what would fail later."""
    needed = {"wrk": "wrk", "redis-server": "redis-server", "setpriv": "util-linux",
              "java": "zookeeper default-jre-headless"}  # fmt: skip
    if "mariadb" in plan.databases:
        needed |= {"mariadbd": "mariadb-server", "mariadb-slap": "mariadb-client"}
    if "postgres" in plan.databases:
        needed |= {"initdb": "postgresql", "pgbench": "postgresql", "psql": "postgresql-client"}
    for name, package in needed.items():
        program(name, package)
    for name in PORTS:
        if listens(plan.port_of(name)):
            raise BenchError(f"port {plan.port_of(name)} is in use: choose others with --port")


@contextmanager
def state_directory(data: Path) -> Iterator[Path]:
    """A directory that servers may look into, gone afterwards."""
    state = Path(tempfile.mkdtemp(prefix="stocklock-bench-", dir=data))
    try:
        state.chmod(0o755)
        yield state
    finally:
        shutil.rmtree(state)


def measure(plan: Plan, state: Path, results: Results) -> None:
    """Runs everything, and fills the results. Whatever it started is stopped when it returns."""
    begin = time.monotonic()
    with ExitStack() as running:
        say("starting Redis and ZooKeeper")
        redis = Redis(state, plan.port_of("redis"))
        running.callback(redis.stop)
        zookeeper = ZooKeeper(state, plan.port_of("zookeeper"))
        running.callback(zookeeper.stop)
        results.servers["Redis"] = redis.settings()
        results.servers["ZooKeeper"] = zookeeper.settings()
        environment = plan.settings | {
            "REDIS_URL": redis.url,
            "ZOOKEEPER_CONNECT": zookeeper.connect,
        }
        site = _Site(plan, state, environment, redis, results)
        progress = Progress(_runs(plan, site.strategies()))
        for name in plan.databases:
            redis.command("FLUSHALL")
            site.measure(name, progress)
    results.minutes = (time.monotonic() - begin) / 60


@dataclass(frozen=True)
class _Site:
    """What all databases are measured with."""

    plan: Plan
    state: Path
    environment: dict[str, str]
    redis: Redis
    results: Results

    def strategies(self) -> list[Strategy]:
        """Which there are, asked of a service that is stopped again: so it is known how long the
        whole will take."""
        service = self._service(f"sqlite://{self.state / 'survey.db'}")
        try:
            return service.strategies()
        finally:
            service.stop()

    def measure(self, name: str, progress: Progress) -> None:
        """Everything on one database, which runs only meanwhile."""
        say(f"starting {name}")
        database = _database(name, self.plan, self.state)
        with ExitStack() as running:
            running.callback(database.stop)
            self.results.servers[database.title] = database.settings()
            service = self._service(database.url)
            running.callback(service.stop)
            experiments.warm_up(service)
            if isinstance(database, MariaDb | PostgreSql):
                self._against_direct(database, service, progress)
            if name == self.plan.redis_ledger:
                self._redis_lua(database.title, service, progress)
            self._strategies(database.title, service, progress)

    def _against_direct(
        self, database: MariaDb | PostgreSql, service: Service, progress: Progress
    ) -> None:
        pace = self.plan.pace
        rounds = experiments.against_direct(database, service, pace, self.state, progress)
        self.results.against_direct[database.title] = rounds
        tool = TOOLS[database.name]
        self.results.claims.append(claims.single_sql(database.title, tool, rounds))

    def _redis_lua(self, title: str, service: Service, progress: Progress) -> None:
        rounds = experiments.redis_lua(service, self.redis, self.plan.pace, title, progress)
        self.results.redis_ledger = title
        self.results.redis = rounds
        self.results.claims.append(claims.redis_lua(rounds))

    def _strategies(self, title: str, service: Service, progress: Progress) -> None:
        # Redis as deploy/redis.conf has it: that is what a lock needs.
        experiments.set_policy(self.redis, experiments.ALWAYS)
        chosen = service.strategies()
        self.results.tables[title] = experiments.strategies(
            service, chosen, self.plan.pace, title, progress
        )

    def _service(self, database_url: str) -> Service:
        environment = self.environment | {"DATABASE_URL": database_url}
        return Service(self.plan.binary, self.state, self.plan.port_of("service"), environment)


def _database(name: str, plan: Plan, state: Path) -> Database:
    if name == "mariadb":
        return MariaDb(state, plan.port_of(name))
    if name == "postgres":
        return PostgreSql(state, plan.port_of(name))
    return Sqlite(state)


def _runs(plan: Plan, strategies: list[Strategy]) -> int:
    direct = sum(experiments.runs_of_rounds(plan.pace) for name in plan.databases if name in TOOLS)
    tables = len(plan.databases) * experiments.runs_of_table(len(strategies))
    return direct + experiments.runs_of_redis(plan.pace) + tables
