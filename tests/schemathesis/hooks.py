"""What the OpenAPI document cannot say of a request."""

import itertools
import json

import schemathesis
from schemathesis.core.parameters import ParameterLocation

IN_QUERY_OR_BODY = {"sku", "warehouse", "quantity", "reference"}

numbers = itertools.count()


@schemathesis.serializer("application/x-ndjson")
def ndjson(ctx, value):
    """One row."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def lines_of(body):
    """The lines of an operation, if the body has some."""
    lines = body.get("lines") if isinstance(body, dict) else None
    return lines if isinstance(lines, list) else []


def is_wide(body):
    """Whether an operation names more than 100 levels."""
    lines = [line for line in lines_of(body) if isinstance(line, dict)]
    names = [line.get("warehouses") for line in lines]
    levels = sum(len(name) if isinstance(name, list) else 1 for name in names)
    return (levels > 100 and any(names)) or any(map(is_wide, lines))


@schemathesis.hook
def filter_case(ctx, case):
    """A deduction takes its fields from the body or from the query. A reversal names each line once. A
    warehouse of holds needs its SKU. A wrong row of an import is answered by its row, in a 200."""
    if case.path == "/import" and case.meta and case.meta.is_negative_at(ParameterLocation.BODY):
        return False
    query = set(case.query or {})
    has_body = not isinstance(case.body, schemathesis.core.NotSet)
    if not has_body:
        return case.path != "/holds" or "warehouse" not in query or "sku" in query
    lines = [line.get("line") for line in lines_of(case.body) if isinstance(line, dict)]
    is_twice = any(line is not None and lines.count(line) > 1 for line in lines)
    return not (IN_QUERY_OR_BODY & query or is_twice or is_wide(case.body))


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """A key belongs to one request; schemathesis sends the same one with others. Several lines need one."""
    if not (case.meta and case.meta.generation.mode.is_positive):
        return
    key = (case.headers or {}).get("Idempotency-Key")
    if key is None and len(lines_of(case.body)) > 1 and not case.path.endswith("/batch"):
        key = "lines"
    if key is not None:
        case.headers["Idempotency-Key"] = f"{key[:225]}{next(numbers):015}"
