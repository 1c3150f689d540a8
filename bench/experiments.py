"""The runs of a bench and their order.

Runs that are compared alternate within a round, and each round reverses their order. So a change in
the machine's speed affects both sides. The results have the form of performance.json.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import direct, load
from .load import Run
from .process import BenchError, say
from .servers import Database, Redis, Server
from .service import Service

CONNECTIONS = (1, 16, 64, 256)
# More connections, only for some strategies. They need higher limits than the default: `cli.parse`.
CROWDS = (1024, 4096)
CROWDED = ("single-sql", "group-commit")
# Clients of the load tools.
CLIENTS = (1, 4, 16, 64)
# The claim about redis-lua is for this count.
REDIS_CONNECTIONS = 64


# How Redis persists its data: `appendonly` and `appendfsync`.
POLICIES = {"everysec": ("yes", "everysec"), "always": ("yes", "always"), "off": ("no", "everysec")}
CLAIMED_POLICY = "everysec"


@dataclass(frozen=True)
class Site:
    """One build of the service with its servers, and a directory for scripts and logs. `launch`
    starts another replica on the port that is so far behind `port`."""

    service: Service
    database: Database
    redis: Redis
    home: Path
    settings: dict[str, dict[str, str]]
    port: int
    launch: Callable[[int], Service]


def direct_round(
    site: Site, seconds: float, number: int, connections: Sequence[int], clients: Sequence[int]
) -> dict[str, list[Run]]:
    """`single-sql`, and the same statement from that many `clients` of the database's own load
    tool."""
    database, service = site.database, site.service
    assert isinstance(database, Server)
    single_sql = service.strategy("single-sql")
    this: dict[str, list[Run]] = {"direct": [], "service": []}
    for count in connections:
        sides = ["direct", "service"] if count in clients else ["service"]
        for side in sides if number % 2 == 0 else sides[::-1]:
            what = "single-sql" if side == "service" else database.tool
            say(f"{database.title}, round {number + 1}: {what}, {count} connections")
            if side == "service":
                run = load.deduct(service, single_sql, count, seconds)
            else:
                run = direct.measure(database, service, single_sql, count, seconds, home=site.home)
            this[side].append(run)
    if clients:
        direct.assert_same_rows(database, "single-sql")
    return this


def redis_round(
    site: Site, seconds: float, number: int, connections: Sequence[int], policies: Iterable[str]
) -> dict[str, Any]:
    """`redis-lua` under each policy, and `/healthz` before and after the run that the claim
    depends on. `kept_bytes`: what Redis keeps per sale after SQL has it, one value per run."""
    service, redis = site.service, site.redis
    redis_lua = service.strategy("redis-lua")
    healthz: list[Run] = []
    by_policy: dict[str, list[Run]] = {policy: [] for policy in policies}
    kept_bytes: list[float] = []
    for count in connections:
        title = f"Redis with {site.database.title}, round {number + 1}, {count} connections"
        say(f"{title}: /healthz")
        healthz.append(load.healthz(service, count, seconds))
        for policy, runs in by_policy.items():
            say(f"{title}: redis-lua, appendfsync {policy}")
            set_policy(redis, policy)
            empty = redis.used_memory()
            run = load.deduct(service, redis_lua, count, seconds)
            runs.append(run)
            kept_bytes.append((redis.used_memory() - empty) / run["answered"])
            if (count, policy) == (REDIS_CONNECTIONS, CLAIMED_POLICY):
                say(f"{title}: /healthz again")
                healthz.append(load.healthz(service, count, seconds))
    return {"healthz": healthz, "policies": by_policy, "kept_bytes": kept_bytes}


def set_policy(redis: Redis, policy: str, seconds: float = 60) -> None:
    """Empties Redis, changes its persistence, and waits until the change is complete. SQL has the
    sales of earlier runs."""
    redis.command("FLUSHALL")
    appendonly, appendfsync = POLICIES[policy]
    redis.command("CONFIG", "SET", "appendfsync", appendfsync)
    redis.command("CONFIG", "SET", "appendonly", appendonly)
    deadline = time.monotonic() + seconds
    names = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    while "1" in map(redis.info("persistence").get, names):
        if time.monotonic() > deadline:
            raise BenchError(f"Redis rewrites its file for more than {seconds:.0f} s")
        time.sleep(0.05)


def strategies(site: Site, counts: Sequence[int], seconds: float) -> dict[str, list[Any]]:
    """The table of one database: each strategy and `/healthz` with each number of connections."""
    # As in deploy/redis.conf: a lock needs it.
    set_policy(site.redis, "always")
    table: dict[str, list[Any]] = {"healthz": [], "rows": []}
    for count in counts:
        say(f"{site.database.title}, {count} connections: all strategies")
        table["healthz"].append(load.healthz(site.service, count, seconds))
        for strategy in site.service.strategies():
            if count in CROWDS and strategy.name not in CROWDED:
                continue
            run = load.deduct(site.service, strategy, count, seconds)
            table["rows"].append({"strategy": strategy._asdict(), "run": run})
    return table
