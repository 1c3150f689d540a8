"""What is being run and how much is left, on stderr."""

import sys
import time


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Progress:
    """Counts runs. What is left is estimated from those so far."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._done = 0
        self._begin = time.monotonic()

    def begins(self, what: str) -> None:
        """Says what is run next."""
        left = ""
        if self._done >= 5:
            each = (time.monotonic() - self._begin) / self._done
            left = f", {each * (self._runs - self._done) / 60:.0f} min left"
        self._done += 1
        say(f"[{self._done}/{self._runs}{left}] {what}")
