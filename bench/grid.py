"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def refused(rate: float) -> str:
    """For a cell: the answers that are not throughput."""
    return f", refused {rate:.0f}" if rate >= 0.5 else ""
