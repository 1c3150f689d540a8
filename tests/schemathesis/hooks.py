"""What the OpenAPI document cannot say of a request, and shorter patterns."""

import itertools
import json
import re

import schemathesis

IN_QUERY_OR_BODY = {"sku", "warehouse", "quantity", "reference"}

numbers = itertools.count()


@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    """Only the ASCII letters of names: schemathesis lists all 140,000 each time, and takes ten minutes."""
    letters = re.compile(r"\[\.0-9A-Z_a-z[^]]*-\]")
    text, count = letters.subn(r"[.0-9A-Z_a-z-]", json.dumps(raw_schema, ensure_ascii=False))
    assert count > 0, "no pattern has the letters of names"
    raw_schema.update(json.loads(text))


@schemathesis.hook
def filter_case(ctx, case):
    """A deduction takes its fields from the body or from the query. A search needs one of two fields."""
    query = set(case.query or {})
    if case.operation.label == "GET /operations" and not {"key", "reference"} & query:
        return False
    has_body = not isinstance(case.body, schemathesis.core.NotSet)
    return not (has_body and IN_QUERY_OR_BODY & query)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """A key belongs to one request; schemathesis sends the same one with others."""
    key = (case.headers or {}).get("Idempotency-Key")
    if key is not None and case.meta and case.meta.generation.mode.is_positive:
        case.headers["Idempotency-Key"] = f"{key[:240]}{next(numbers):015}"
