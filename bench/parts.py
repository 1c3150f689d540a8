"""The parts of a bench about `group-commit` and `redis-lua`. Each compares a few runs, which take turns."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from . import crowd, direct, load, replicas
from .experiments import CONNECTIONS, CROWDS, Site
from .load import Market, Run
from .process import BenchError, say
from .servers import PostgreSql

MANY = CONNECTIONS[-1]
# A batch call: the lines of a request, and the connections. The lines of all connections together
# are fewer than the writes that one SKU may have in progress.
LINES, BATCHES = 100, 16
# The lines of an order.
ORDER_LINES = 3
# pgbench is fastest with this number of clients.
BATCH_CLIENTS = 2
# The SKUs under a Zipf law, and its exponent.
SKUS, EXPONENT = 1000, 1.0

# The runs that are compared, by name. Each is called with the seconds that it takes.
Sides = dict[str, Callable[[float], Run]]
# A round has one run of each.
Round = dict[str, Run]


def measure(
    part: str, sites: Sequence[tuple[Site, dict[str, Any]]], rounds: int, seconds: float
) -> None:
    """Adds the rounds of a part to the results of each build. Two builds take turns."""
    with ExitStack() as stack:
        builds = []
        for site, results in sites:
            sides = stack.enter_context(PARTS[part](site))
            by_database = results["parts"].setdefault(part, {})
            builds.append((sides, by_database.setdefault(site.database.title, [])))
        title = sites[0][0].database.title
        for number in range(rounds):
            for sides, found in builds if number % 2 == 0 else builds[::-1]:
                found.append(alternate(f"{title}, {part}", sides, number, seconds))


def alternate(what: str, sides: Sides, number: int, seconds: float) -> Round:
    """One round. Every second one reverses the order."""
    names = list(sides)
    this = {}
    for name in names if number % 2 == 0 else names[::-1]:
        say(f"{what}, round {number + 1}: {name}")
        this[name] = sides[name](seconds)
    return {name: this[name] for name in names}


def deductions(site: Site, name: str, connections: int) -> Callable[[float], Run]:
    """Deductions of one SKU with this strategy."""
    return partial(load.deduct, site.service, site.service.strategy(name), connections)


@contextmanager
def hot(site: Site) -> Iterator[Sides]:
    """256 connections buy one SKU."""
    yield {
        "/healthz": partial(load.healthz, site.service, MANY),
        "group-commit": deductions(site, "group-commit", MANY),
        "single-sql": deductions(site, "single-sql", MANY),
    }


@contextmanager
def lone(site: Site) -> Iterator[Sides]:
    """One connection: no request waits for another."""
    yield {name: deductions(site, name, 1) for name in ("group-commit", "single-sql")}


@contextmanager
def connections(site: Site) -> Iterator[Sides]:
    """More connections buy one SKU, and each of 4,096 is answered."""
    sides = {f"{count:,}": deductions(site, "group-commit", count) for count in (MANY, *CROWDS)}
    group_commit = site.service.strategy("group-commit")
    yield sides | {"each of 4,096": partial(crowd.deduct, site.service, group_commit, CROWDS[-1])}


@contextmanager
def sold_out(site: Site) -> Iterator[Sides]:
    """256 connections try to buy a SKU without stock."""
    refuse = partial(load.refuse, site.service, site.service.strategy("group-commit"))
    yield {
        "without a key": partial(refuse, load.NO_KEY, MANY),
        "/healthz": partial(load.healthz, site.service, MANY),
        "with a key": partial(refuse, load.KEY, MANY),
    }


@contextmanager
def batch(site: Site) -> Iterator[Sides]:
    """Requests with many lines, and the insert of as many rows by the database's load tool."""
    group_commit = site.service.strategy("group-commit")
    sides = {
        "single requests": deductions(site, "group-commit", MANY),
        "batches": partial(load.batches, site.service, group_commit, LINES, BATCHES),
    }
    if isinstance(site.database, PostgreSql):
        sides["pgbench"] = partial(
            direct.measure, site.database, site.service, group_commit, BATCH_CLIENTS,
            directory=site.directory, lines=LINES,
        )  # fmt: skip
    yield sides
    if isinstance(site.database, PostgreSql):
        direct.assert_same_rows(site.database, group_commit.name)


@contextmanager
def zipf(site: Site) -> Iterator[Sides]:
    """256 connections buy 1,000 SKUs, some of them much more often than others."""
    strategies = {name: site.service.strategy(name) for name in ("group-commit", "single-sql")}
    market = Market(site.service, SKUS)
    yield {name: partial(market.buy, each, EXPONENT, MANY) for name, each in strategies.items()}


@contextmanager
def orders(site: Site) -> Iterator[Sides]:
    """Orders of several of these SKUs, and as many deductions of one."""
    group_commit = site.service.strategy("group-commit")
    market = Market(site.service, SKUS)
    yield {
        "single deductions": partial(market.buy, group_commit, EXPONENT, MANY),
        "orders": partial(market.order, group_commit, EXPONENT, ORDER_LINES, MANY),
    }


@contextmanager
def holds(site: Site) -> Iterator[Sides]:
    """Holds of one SKU, with and without their confirmation."""
    group_commit = site.service.strategy("group-commit")
    # One script sends all three, because to read the answers takes it as long as to send.
    kinds = {"deductions": "deductions", "holds": "holds", "holds and confirms": "confirms"}
    yield {
        side: partial(load.holds, site.service, kind, group_commit, MANY)
        for side, kind in kinds.items()
    }


@contextmanager
def cold(site: Site) -> Iterator[Sides]:
    """One connection buys a SKU of its own while 256 others buy one SKU, or as many SKUs."""
    group_commit = site.service.strategy("group-commit")
    markets = {name: Market(site.service, count)
               for name, count in (("one SKU", 1), ("256 SKUs", MANY))}  # fmt: skip

    def beside(market: Market, seconds: float) -> Run:
        # Longer, because one connection makes few requests.
        seconds += 1
        with ThreadPoolExecutor(1) as others:
            load_of_others = others.submit(market.buy, group_commit, 0, MANY, seconds + 2)
            time.sleep(1)
            run = load.deduct(site.service, group_commit, 1, seconds)
            return run | {"others_rate": load_of_others.result()["rate"]}

    yield {name: partial(beside, market) for name, market in markets.items()}


@contextmanager
def behind_nginx(site: Site) -> Iterator[Sides]:
    """256 connections buy one SKU through nginx from one, two or four replicas."""
    group_commit = site.service.strategy("group-commit")
    with replicas.open_fronts(site, (1, 2, 4)) as fronts:
        sides: Sides = {}
        for count, front in fronts.items():
            name = "1 replica" if count == 1 else f"{count} replicas"
            sides[name] = partial(replicas.deduct, front, group_commit, MANY)
        yield sides


@contextmanager
def shards(site: Site) -> Iterator[Sides]:
    """256 connections buy one SKU of one deployment, or 128 each one SKU of two deployments."""
    with ExitStack() as stack:
        both = [stack.enter_context(site.launch_apart(number)) for number in (1, 2)]
        strategies = [service.strategy("group-commit") for service in both]

        def buy(count: int, seconds: float) -> Run:
            """The rates add up. The latencies are those of the slower deployment."""
            chosen = list(zip(both, strategies, strict=True))[:count]
            with ThreadPoolExecutor(count) as threads:
                runs = list(threads.map(lambda each: load.deduct(*each, MANY // count, seconds), chosen))
            slowest = max(runs, key=lambda run: float(run["p99_ms"]))
            counts = ("connections", "rate", "refused", "answered", "others", "lost")
            return slowest | {name: sum(run[name] for run in runs) for name in counts}

        yield {
            "1 deployment": partial(buy, 1),
            "2 deployments": partial(buy, 2),
        }


@contextmanager
def settings(site: Site) -> Iterator[Sides]:
    """256 connections buy one SKU of a deployment that wants an API key, or records events."""
    with ExitStack() as stack:

        def deployment(number: int, **other: str) -> Callable[[float], Run]:
            service = stack.enter_context(site.launch_apart(number, **other))
            return partial(load.deduct, service, service.strategy("group-commit"), MANY)

        yield {
            "AUTH=none": deployment(1, AUTH="none"),
            "AUTH=keys": deployment(2, AUTH="keys"),
            "EVENTS=on": deployment(3, AUTH="none", EVENTS="on"),
        }


@contextmanager
def counter(site: Site) -> Iterator[Sides]:
    """`redis-lua` asks the counter in Redis, and then sells like `group-commit`."""
    redis_lua = site.service.strategy("redis-lua")

    def refuse(seconds: float) -> Run:
        before = site.redis.scripts()
        run = load.refuse(site.service, redis_lua, load.NO_KEY, MANY, seconds)
        asked = site.redis.scripts() - before
        if asked < run["others"]:
            raise BenchError(f"{run['others']} refusals, but only {asked} scripts ran in Redis")
        return run

    yield {
        "group-commit": deductions(site, "group-commit", MANY),
        "redis-lua": deductions(site, "redis-lua", MANY),
        "/healthz": partial(load.healthz, site.service, MANY),
        "redis-lua, sold out": refuse,
        "single-sql, 1 connection": deductions(site, "single-sql", 1),
        "redis-lua, 1 connection": deductions(site, "redis-lua", 1),
    }


# By the name for `--part`, in the order of the page.
PARTS: dict[str, Callable[[Site], AbstractContextManager[Sides]]] = {
    "hot": hot,
    "lone": lone,
    "connections": connections,
    "replicas": behind_nginx,
    "batch": batch,
    "sold-out": sold_out,
    "zipf": zipf,
    "orders": orders,
    "holds": holds,
    "cold": cold,
    "shards": shards,
    "settings": settings,
    "counter": counter,
}
# Replicas cannot share SQLite. The claims about the counter are about servers.
ON_SERVERS = {"replicas", "counter"}
