"""Replicas behind nginx, which has the configuration of deploy/."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from . import load
from .experiments import CONNECTIONS, Site
from .load import Run
from .process import ROOT, BenchError, Process, program
from .service import Client, Service, Strategy

UPSTREAM = re.compile(r"^( *server) replica-\d+:8080(.*)\n", re.MULTILINE)


class Nginx(Client, Process):
    """One nginx in front of these replicas."""

    def __init__(self, directory: Path, port: int, replicas: Sequence[Service]) -> None:
        Client.__init__(self, f"127.0.0.1:{port}")
        self._replicas = replicas
        directory.mkdir()
        configuration = directory / "nginx.conf"
        text = (ROOT / "deploy/nginx.conf").read_text()
        addresses = [replica.address for replica in replicas]
        configuration.write_text(configure(text, self.address, addresses))
        command = [program("setpriv"), "--pdeathsig=TERM", "--", program("nginx"), "-e", "stderr",
                   "-p", str(directory), "-c", str(configuration), "-g", "daemon off;"]  # fmt: skip
        # The access log goes to standard output. It would fill the disk.
        Process.__init__(self, command, directory / "nginx.log", {}, stdout=subprocess.DEVNULL)
        self.await_ready(self)

    def counts(self, metric: str) -> dict[str, int]:
        """The sums over the replicas, because nginx does not pass their metrics on."""
        sums: Counter[str] = Counter()
        for replica in self._replicas:
            sums.update(replica.counts(metric))
        return sums


def configure(text: str, address: str, replicas: Sequence[str]) -> str:
    """deploy/nginx.conf with these addresses."""
    first = UPSTREAM.search(text)
    if not first or text.count("listen 8080 ") != 1:
        raise BenchError("deploy/nginx.conf needs servers replica-N:8080 and one `listen 8080`")
    servers = "".join(f"{first[1]} {replica}{first[2]}\n" for replica in replicas)
    others = UPSTREAM.sub("", text[first.end() :])
    return (text[: first.start()] + servers + others).replace("listen 8080 ", f"listen {address} ")


@contextmanager
def open_fronts(site: Site, counts: Sequence[int]) -> Iterator[dict[int, Nginx]]:
    """One nginx for each number of replicas, in ascending order. The first replica is behind each
    nginx, and so on."""
    with ExitStack() as stack:
        replicas = [stack.enter_context(closing(site.launch(number + 1)))
                    for number in range(max(counts))]  # fmt: skip
        fronts = {}
        for number, count in enumerate(counts):
            port = site.port + 1 + max(counts) + number
            nginx = Nginx(site.directory / f"nginx-{count}", port, replicas[:count])
            fronts[count] = stack.enter_context(closing(nginx))
        # Fills the connection pools of the replicas, as in `bench.open_site`.
        load.deduct(nginx, nginx.strategy("single-sql"), CONNECTIONS[-1], 1)
        yield fronts


def deduct(front: Nginx, strategy: Strategy, connections: int, seconds: float) -> Run:
    """Deductions of one SKU with plenty in stock. Then the connections sell another one out, and
    must not sell one unit too many."""
    run = load.deduct(front, strategy, connections, seconds)
    load.sell_out(front, strategy, int(run["rate"] / 4) + 1, connections, 1)
    return run
