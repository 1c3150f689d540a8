"""Many connections at once, each of which is counted. wrk counts only their sum."""

import re
import secrets
import selectors
import socket
import time

from . import load
from .load import Run
from .process import BenchError
from .service import Client, Strategy

# The head of an answer, and the length of its body.
HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) .*?\r\ncontent-length: (\d+)(?=\r\n).*?\r\n\r\n", re.DOTALL | re.I)


class Connection:
    """A connection that has at most one open request."""

    def __init__(self, address: tuple[str, int], before: bytes) -> None:
        self._before, self._received = before, b""
        self._sent = self.deducted = self.others = 0
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)

    def order(self) -> None:
        self._sent += 1
        self.socket.sendall(b"%s-%d\r\n\r\n" % (self._before, self._sent))

    def has_answer(self) -> bool:
        """Reads what has arrived, and counts the answer if it is complete."""
        part = self.socket.recv(65536)
        if not part:
            raise BenchError("the service closed a connection without an answer")
        self._received += part
        head = HEAD.match(self._received)
        if not head or len(self._received) < head.end() + int(head[2]):
            return False
        if head[1] == b"200":
            self.deducted += 1
        else:
            self.others += 1
        self._received = b""
        return True


def deduct(service: Client, strategy: Strategy, count: int, seconds: float) -> Run:
    """Deductions of one new SKU for this time, and until each connection has its last answer.
    `least`: the answers with status 200 of the connection that got the fewest."""
    sku = load.new_sku(service)
    start = time.monotonic()
    connections = _run(service, f"/stock/deduct?sku={sku}&strategy={strategy.name}", count, seconds)
    elapsed = time.monotonic() - start
    answered, others = (sum(getattr(one, name) for one in connections)
                        for name in ("deducted", "others"))  # fmt: skip
    measured = {"connections": count, "rate": answered / elapsed, "refused": others / elapsed,
                "answered": answered, "others": others,
                "least": min(one.deducted for one in connections)}  # fmt: skip
    # No request was cut, so the ledger has exactly the sales that were answered.
    load.check(service, strategy, measured, 0, service.final_audit(sku))
    return measured


def _run(service: Client, path: str, count: int, seconds: float) -> list[Connection]:
    host, port = service.address.split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {service.address}\r\nContent-Length: 0\r\n"
    nonce = secrets.token_hex(6)
    befores = (f"{head}{load.KEY}: {nonce}-{number}".encode() for number in range(count))
    connections = [Connection((host, int(port)), before) for before in befores]
    end, limit = time.monotonic() + seconds, time.monotonic() + seconds + 30
    try:
        with selectors.DefaultSelector() as selector:
            for one in connections:
                selector.register(one.socket, selectors.EVENT_WRITE, one)
            while selector.get_map():
                now = time.monotonic()
                if now > limit:
                    raise BenchError(f"{len(selector.get_map())} connections got no answer")
                for key, event in selector.select(1):
                    one = key.data
                    if event == selectors.EVENT_WRITE:
                        selector.modify(one.socket, selectors.EVENT_READ, one)
                    elif not one.has_answer():
                        continue
                    elif now > end:
                        selector.unregister(one.socket)
                        continue
                    one.order()
    except OSError as error:
        raise BenchError(f"a connection broke: {error}") from error
    finally:
        for one in connections:
            one.socket.close()
    return connections
