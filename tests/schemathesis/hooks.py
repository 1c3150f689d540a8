"""What the OpenAPI document cannot say of a request."""

import itertools

import schemathesis

IN_QUERY_OR_BODY = {"sku", "warehouse", "quantity", "reference"}

numbers = itertools.count()


@schemathesis.hook
def filter_case(ctx, case):
    """A deduction takes its fields from the body or from the query."""
    query = set(case.query or {})
    has_body = not isinstance(case.body, schemathesis.core.NotSet)
    return not (has_body and IN_QUERY_OR_BODY & query)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """A key belongs to one request; schemathesis sends the same one with others."""
    key = (case.headers or {}).get("Idempotency-Key")
    if key is not None and case.meta and case.meta.generation.mode.is_positive:
        case.headers["Idempotency-Key"] = f"{key[:240]}{next(numbers):015}"
