"""What is run, in which order, and what is kept of it.

What is compared is measured side by side: in each round the two take turns, and who is first
changes from round to round.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import direct, load
from .direct import Direct
from .load import Run
from .process import BenchError
from .progress import Progress
from .servers import MariaDb, PostgreSql, Redis
from .service import Service, Strategy

CONNECTIONS = (1, 16, 64, 256)
CLIENTS = (1, 4, 16, 64)
# Those of the direct clients, so that they can be compared one by one, and 256.
SERVICE_CONNECTIONS = (1, 4, 16, 64, 256)
# Where redis-lua is compared in every round; the other counts are measured once.
REDIS_CONNECTIONS = 64


@dataclass(frozen=True)
class Policy:
    """How Redis keeps what it was told."""

    name: str
    appendonly: bool
    appendfsync: str = "everysec"


ALWAYS = Policy("always", appendonly=True, appendfsync="always")
CLAIMED_POLICY = Policy("everysec", appendonly=True)
POLICIES = (
    CLAIMED_POLICY,
    ALWAYS,
    Policy("off", appendonly=False),
)


@dataclass(frozen=True)
class Pace:
    """How often, and for how many seconds each."""

    rounds: int
    seconds: float  # of a run that a claim depends on
    table_seconds: float  # of a run of the tables


@dataclass
class Round:
    """`single-sql` and the load tool in turn, once with each number of connections."""

    direct: list[Direct] = field(default_factory=list)
    service: list[Run] = field(default_factory=list)


@dataclass
class RedisRound:
    """`/healthz` and `redis-lua` under each policy in turn, by number of connections. With those of
    the claim, `/healthz` comes before and after the run that is compared with it."""

    healthz: list[Run] = field(default_factory=list)
    policies: dict[str, list[Run]] = field(default_factory=dict)
    # What Redis keeps of each sale once SQL has it, run by run.
    kept_bytes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TableRow:
    """One strategy with one number of connections."""

    strategy: Strategy
    run: Run


@dataclass
class Table:
    """Every strategy on one database, and `/healthz` with the same numbers of connections."""

    healthz: list[Run] = field(default_factory=list)
    rows: list[TableRow] = field(default_factory=list)


def runs_of_rounds(pace: Pace) -> int:
    return pace.rounds * (len(CLIENTS) + len(SERVICE_CONNECTIONS))


def runs_of_redis(pace: Pace) -> int:
    return (pace.rounds - 1 + len(CONNECTIONS)) * (1 + len(POLICIES)) + pace.rounds


def runs_of_table(strategies: int) -> int:
    return (strategies + 1) * len(CONNECTIONS)


def against_direct(
    database: MariaDb | PostgreSql, service: Service, pace: Pace, state: Path, progress: Progress
) -> list[Round]:
    """`single-sql` beside the same statements from the database's own load tool."""
    single_sql = _strategy(service, "single-sql")
    rounds = []
    for number in range(pace.rounds):
        this = Round()
        for count, ours in _turns(number):
            who = "single-sql" if ours else "directly"
            progress.begins(f"{database.title}, round {number + 1}: {who}, {count} connections")
            if ours:
                this.service.append(load.deduct(service, single_sql, count, pace.seconds))
            else:
                this.direct.append(direct.measure(database, service, count, pace.seconds, state))
        rounds.append(this)
    direct.assert_same_rows(database)
    return rounds


def _turns(number: int) -> Iterator[tuple[int, bool]]:
    """The numbers of connections, and whether it is the service's turn."""
    for count in SERVICE_CONNECTIONS:
        for ours in (False, True) if number % 2 == 0 else (True, False):
            if ours or count in CLIENTS:
                yield count, ours


def redis_lua(
    service: Service, redis: Redis, pace: Pace, database: str, progress: Progress
) -> list[RedisRound]:
    """`redis-lua` under each policy beside `/healthz`."""
    strategy = _strategy(service, "redis-lua")
    rounds = []
    for number in range(pace.rounds):
        this = RedisRound(policies={policy.name: [] for policy in POLICIES})
        for count in CONNECTIONS if number == 0 else (REDIS_CONNECTIONS,):
            where = f"Redis before {database}, round {number + 1}, {count} connections"
            progress.begins(f"{where}: /healthz")
            this.healthz.append(load.healthz(service, count, pace.seconds))
            for policy in POLICIES:
                progress.begins(f"{where}: redis-lua, appendfsync {policy.name}")
                set_policy(redis, policy)
                empty = redis.used_memory()
                run = load.deduct(service, strategy, count, pace.seconds)
                this.policies[policy.name].append(run)
                this.kept_bytes.append((redis.used_memory() - empty) / run.answered)
                if (count, policy) == (REDIS_CONNECTIONS, CLAIMED_POLICY):
                    progress.begins(f"{where}: /healthz again")
                    this.healthz.append(load.healthz(service, count, pace.seconds))
        rounds.append(this)
    return rounds


def set_policy(redis: Redis, policy: Policy, seconds: float = 60) -> None:
    """Changes how Redis keeps its data, and waits until it does so. What it remembers of the runs
    before is in SQL by now, and would only be written anew."""
    redis.command("FLUSHALL")
    redis.command("CONFIG", "SET", "appendfsync", policy.appendfsync)
    redis.command("CONFIG", "SET", "appendonly", "yes" if policy.appendonly else "no")
    deadline = time.monotonic() + seconds
    while _is_rewriting(redis):
        if time.monotonic() > deadline:
            raise BenchError(f"Redis writes its file anew for longer than {seconds:.0f} s")
        time.sleep(0.05)


def _is_rewriting(redis: Redis) -> bool:
    info = redis.info("persistence")
    return "1" in (info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"])


def strategies(
    service: Service, chosen: list[Strategy], pace: Pace, database: str, progress: Progress
) -> Table:
    """Every strategy, each number of connections in turn."""
    table = Table()
    for count in CONNECTIONS:
        progress.begins(f"{database}, {count} connections: /healthz")
        table.healthz.append(load.healthz(service, count, pace.table_seconds))
        for strategy in chosen:
            progress.begins(f"{database}, {count} connections: {strategy.name}")
            run = load.deduct(service, strategy, count, pace.table_seconds)
            table.rows.append(TableRow(strategy, run))
    return table


def warm_up(service: Service) -> None:
    """What is counted must not be the first that the service does: pools open connections when
    they are needed, and databases prepare statements."""
    single_sql = _strategy(service, "single-sql")
    load.healthz(service, CONNECTIONS[-1], 1)
    load.deduct(service, single_sql, CONNECTIONS[-1], 1)


def _strategy(service: Service, name: str) -> Strategy:
    found = [strategy for strategy in service.strategies() if strategy.name == name]
    if not found:
        raise BenchError(f"the service does not offer {name}")
    return found[0]
