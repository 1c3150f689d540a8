"""The runs of a bench and their order.

Runs that are compared alternate within a round, and each round reverses their order. So a change in
the machine's speed affects both sides. The results have the form of performance.json.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import direct, load
from .load import Run
from .process import say
from .servers import Database, Redis, Server
from .service import Service

CONNECTIONS = (1, 16, 64, 256)
# More connections, only for some strategies. They need higher limits than the default: `cli.parse`.
CROWDS = (1024, 4096)
CROWDED = ("single-sql", "group-commit")
# Clients of the load tools.
CLIENTS = (1, 4, 16, 64)


@dataclass(frozen=True)
class Site:
    """One build of the service with its servers, and a directory for scripts and logs. `launch`
    starts another replica on the port that is so far behind `port`, and `launch_apart` one with a
    database of its own, on another server; with the setting AUTH it is `stocklock serve`."""

    service: Service
    database: Database
    redis: Redis
    directory: Path
    settings: dict[str, dict[str, str]]
    port: int
    launch: Callable[[int], Service]
    launch_apart: Callable[..., AbstractContextManager[Service]]


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
                run = direct.measure(database, service, single_sql, count, seconds,
                                     directory=site.directory)  # fmt: skip
            this[side].append(run)
    if clients:
        direct.assert_same_rows(database, "single-sql")
    return this


def strategies(site: Site, counts: Sequence[int], seconds: float) -> dict[str, list[Any]]:
    """The table of one database: each strategy and `/healthz` with each number of connections."""
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
