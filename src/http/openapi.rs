//! The OpenAPI document: its head, and the parts that several routes share.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use utoipa::{IntoParams, IntoResponses, OpenApi, ToResponse, ToSchema};

use super::{Access, KeyRing};
use super::{fields, shards};
use crate::config::Mode;
use stocklock_core::strategy::{Available, Dependency, Strategy};

const DESCRIPTION: &str = "\
An inventory service that never oversells, and shows why.

Every error has a problem (RFC 9457) as its body, with two exceptions: a request that is not valid
HTTP is answered 400, and one whose header is too large 431, both without a body.

Patterns are regular expressions of ECMA-262 with the flag `u`, and also of Python.";

/// The name of the API key in the document.
pub(super) const API_KEY: &str = "api_key";

/// Title, version, licence and shared components. The routes add themselves.
#[derive(OpenApi)]
#[openapi(
    info(title = "Stocklock", description = DESCRIPTION),
    components(
        schemas(Problem),
        responses(
            NotFound,
            Conflict,
            HoldConflict,
            PreconditionFailed,
            PreconditionRequired,
            Gone,
            WebhookConflict,
            Unavailable,
            Foreign,
            Unauthorized,
            Forbidden,
            TooMany,
            NoKeysYet,
            NotInLab,
            Invalid,
            RaceRefused,
            RaceUnavailable
        )
    )
)]
pub(super) struct Document;

/// The document as it is served. It names the strategies that can be used.
pub(super) fn finished(
    document: utoipa::openapi::OpenApi,
    mode: Mode,
    available: &Available,
) -> Value {
    let mut document = serde_json::to_value(document).expect("the document can be written as JSON");
    let strategies: Vec<_> = available.strategies().map(Strategy::name).collect();
    fields::complete(&mut document, &strategies);
    let deduct = &mut document["paths"]["/stock/deduct"]["post"];
    // The fields may be in the query instead.
    deduct["requestBody"]["required"] = false.into();
    // What a hold that was made can be followed by.
    let link = |operation: &str| {
        let link = json!({"operationId": operation, "parameters": {"id": "$response.body#/id"}});
        (operation.to_owned(), link)
    };
    let links = ["operation", "confirm", "extend", "release"].map(link);
    document["paths"]["/holds"]["post"]["responses"]["201"]["links"] =
        links.into_iter().collect::<Map<_, _>>().into();
    let response = |name: &str| json!({"$ref": format!("#/components/responses/{name}")});
    let mut has_keys = false;
    let paths = document["paths"].as_object_mut().expect("paths");
    for operations in paths.values_mut() {
        for (method, operation) in operations.as_object_mut().expect("operations") {
            let needs_key = operation.get("security").is_some();
            has_keys |= needs_key;
            let responses = &mut operation["responses"];
            // `browser.rs` refuses them.
            if mode == Mode::Lab || method != "get" {
                responses["403"] = response("Foreign");
            }
            if needs_key {
                responses["401"] = response("Unauthorized");
                responses["403"] = response("Forbidden");
                responses["429"] = response("TooMany");
                if responses.get("503").is_none() {
                    responses["503"] = response("NoKeysYet");
                }
            }
        }
    }
    if mode == Mode::Serve {
        shards::describe(&mut document);
    }
    // A schema would describe the whole stream as one text.
    let events = &mut document["paths"]["/events"]["get"];
    events["responses"]["200"]["content"]["text/event-stream"] = json!({});
    if has_keys {
        document["components"]["securitySchemes"] = json!({API_KEY: {
            "type": "http", "scheme": "bearer",
            "description": "A key of `stocklock keys create`. The names beside it are the scopes that it needs."
        }});
    }
    if mode == Mode::Lab {
        let events = &mut document["paths"]["/lab/races/{id}/events"]["get"];
        events["responses"]["200"]["content"]["text/event-stream"] = json!({});
        let report = &mut document["paths"]["/lab/races/{id}/report"]["get"];
        report["responses"]["200"]["content"]["application/json"] = json!({});
    } else {
        // Only the lab has a choice of the strategy, and a default SKU.
        let lab_only = ["strategy", "guard", "check"].map(Value::from);
        for path in ["/stock/deduct", "/stock/deduct/batch"] {
            let parameters = &mut document["paths"][path]["post"]["parameters"];
            let parameters = parameters.as_array_mut().expect("parameters");
            parameters.retain(|parameter| !lab_only.contains(&parameter["name"]));
        }
        document["components"]["schemas"]["DeductBody"]["oneOf"][0]["required"] = json!(["sku"]);
    }
    document
}

/// The document of the production service, or of the lab, as JSON. It names every strategy.
#[must_use]
pub fn document(lab: bool) -> Value {
    let mode = if lab { Mode::Lab } else { Mode::Serve };
    let servers = [
        Dependency::Redis,
        Dependency::RedisMasters,
        Dependency::Zookeeper,
    ];
    let access = match mode {
        Mode::Serve => Access::Keys(KeyRing::default()),
        Mode::Lab => Access::Open,
    };
    let access = Arc::new(access);
    let routes = super::documented(mode, &access, None).merge(super::probe_routes(&access));
    let document = routes.into_openapi();
    finished(document, mode, &Available::new(servers))
}

/// An error, in the format of RFC 9457.
#[derive(Debug, ToSchema, ToResponse)]
#[expect(dead_code, reason = "only describes the body, which is built as JSON")]
pub(super) struct Problem {
    /// A URN with the code.
    #[schema(example = "urn:stocklock:problem:insufficient-stock")]
    r#type: String,
    /// The name of the status.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened, and what to do.
    detail: String,
    /// The stable name of the error; match on this.
    #[schema(example = "insufficient-stock")]
    code: String,
    /// The id of the request, as in X-Request-Id and in the log.
    request_id: String,
    /// Units requested (`insufficient-stock`, `exceeds-sale`).
    requested: Option<i64>,
    /// Units available (`insufficient-stock`, `hold-expired`).
    available: Option<i64>,
    /// Units of the sale that have not come back (`exceeds-sale`).
    left: Option<i64>,
    /// Units that the line holds (`exceeds-hold`).
    held: Option<i64>,
    /// What has become of the line of the hold (`hold-ended`).
    state: Option<String>,
    /// The number of that line.
    line: Option<i64>,
    /// The operation that ended it.
    by: Option<String>,
    /// The id of the operation (`outcome-unknown`), for `GET /operations/{id}`.
    id: Option<String>,
    /// The scope that the API key does not have (`forbidden`).
    needs: Option<String>,
    /// The lines that refuse an operation of several lines.
    lines: Option<Vec<ProblemLine>>,
}

/// A line that refuses its operation.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only describes")]
struct ProblemLine {
    /// Its number, from 0.
    line: i64,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units requested (`insufficient-stock`, `exceeds-sale`).
    requested: Option<i64>,
    /// Units available for the line (`insufficient-stock`).
    available: Option<i64>,
    /// Units of the line that have not come back (`exceeds-sale`).
    left: Option<i64>,
}

macro_rules! problem_response {
    ($name:ident, $description:literal) => {
        #[doc = $description]
        #[derive(ToResponse)]
        #[response(description = $description, content_type = "application/problem+json")]
        #[expect(dead_code, reason = "only describes")]
        pub(super) struct $name(Problem);
    };
}
problem_response!(
    NotFound,
    "`unknown-sku`, `unknown-operation`, `unknown-line` (the sale has no such line), \
     `events-off`: this service publishes none, \
     `unknown-webhook`"
);
problem_response!(
    Conflict,
    "`insufficient-stock`, `request-in-flight` (Retry-After), `below-limit`, `level-too-large`, \
     `not-a-sale`, `exceeds-sale`"
);
problem_response!(PreconditionFailed, "`precondition-failed`");
problem_response!(
    PreconditionRequired,
    "`precondition-required`: `on_hand` needs If-Match"
);
problem_response!(
    Gone,
    "`cursor-expired`: the events after the cursor are not kept; read `/export`, and go on from its `X-Events-Cursor`"
);
problem_response!(
    WebhookConflict,
    "`too-many-webhooks`; `cursor-expired`: the next events of the webhook are not kept any more"
);
problem_response!(Unavailable, "`not-ready`");
problem_response!(
    Foreign,
    "`foreign-origin`; in the lab also `foreign-host`: the request comes from a page of another site"
);
problem_response!(
    Unauthorized,
    "`unauthorized`: there is no valid API key in Authorization"
);
problem_response!(
    Forbidden,
    "`forbidden`: the API key does not have the scope in `needs`. `foreign-origin`: a write comes from a page of \
     another site"
);
problem_response!(
    TooMany,
    "`too-many-requests` (Retry-After): the API key has reached its limit"
);
problem_response!(
    HoldConflict,
    "`hold-ended`, `hold-expired`, `exceeds-hold`, `not-a-hold`, `insufficient-stock`, \
     `request-in-flight` (Retry-After)"
);
problem_response!(
    NoKeysYet,
    "`unavailable` (Retry-After): the API keys are not loaded yet"
);
problem_response!(
    NotInLab,
    "`unknown-race`, `unknown-file`, `no-locks`: this replica has none of this strategy"
);
problem_response!(Invalid, "`invalid-request`: a field is invalid");
problem_response!(
    RaceRefused,
    "`race-running`: its id is in `id`. `race-refused`: this lab cannot run such a race"
);
problem_response!(
    RaceUnavailable,
    "`strategy-unavailable`: the detail says what to set"
);

/// Errors of every route that parses fields or reads the database.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes")]
pub(super) enum ReadErrors {
    /// `invalid-request`: a field is invalid. On some routes also `invalid-idempotency-key`,
    /// `idempotency-key-reused`, `unknown-strategy`, `strategy-fixed`, `safeguards-fixed`, `lines-required`
    /// (the sale has several lines), `too-many-lines` (an operation would concern more than 100 levels)
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// Nothing was changed. With Retry-After: `unavailable`, `overloaded`, `contended` (writes), `too-slow`
    /// (the database ended a statement at its time limit), `strategy-unavailable` (a server does not
    /// answer). Without Retry-After: `strategy-unavailable` (a server is not configured)
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// Further errors of every route that writes.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes")]
pub(super) enum WriteErrors {
    /// `not-json`, `body-incomplete`, `bad-request`, `idempotency-key-required` (several lines, holds)
    #[response(status = 400, content_type = "application/problem+json")]
    NotParseable(Problem),
    /// `request-timeout`: the body did not arrive in time
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(Problem),
    /// `body-too-large`
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// `unsupported-media-type`
    #[response(status = 415, content_type = "application/problem+json")]
    NotJson(Problem),
    /// `outcome-unknown`: retry with the same Idempotency-Key to get the outcome; after a PUT, read
    /// the level again
    #[response(status = 504, content_type = "application/problem+json")]
    Unknown(Problem),
}

/// Errors of a race that the page starts.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes")]
pub(super) enum LabErrors {
    /// `not-json`, `body-incomplete`, `bad-request`
    #[response(status = 400, content_type = "application/problem+json")]
    NotParseable(Problem),
    /// `unsupported-media-type`
    #[response(status = 415, content_type = "application/problem+json")]
    NotJson(Problem),
    /// `invalid-request`: a field is invalid
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct SkuPath {
    /// The SKU: 1 to 64 letters and marks of any script, digits, `.`, `_`, `-`.
    sku: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct OperationPath {
    /// The id of the operation.
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct WebhookPath {
    /// The id of the webhook.
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct IdempotencyKeyHeader {
    /// The caller's name for this request, 1 to 255 visible ASCII characters. A retry with the same
    /// key and the same fields gets the answer to the first request; with other fields, 422
    /// `idempotency-key-reused`.
    #[param(rename = "Idempotency-Key")]
    idempotency_key: Option<String>,
}

/// The same for a request that needs one.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct RequiredKeyHeader {
    /// The caller's name for this request, 1 to 255 visible ASCII characters. A retry with the same
    /// key and the same fields gets the answer to the first request; with other fields, 422
    /// `idempotency-key-reused`.
    #[param(rename = "Idempotency-Key")]
    idempotency_key: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct IfNoneMatchHeader {
    /// Values of `ETag` that the caller has, strong or weak, or `*`. If one of them is still the ETag,
    /// the answer is 304. A malformed value is ignored.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct PreconditionHeaders {
    /// One or more values of `ETag` from `GET` or `PUT /stock/{sku}`, strong or weak, or `*`. If the
    /// body names a warehouse, the ETag of that level (`?warehouse=`) or of the SKU.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// `*`: only create the level.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}
