//! The API's documentation: its head, and the parts that several routes share.

use serde_json::Value;
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, RefOr, Schema,
};
use utoipa::{IntoParams, IntoResponses, ToResponse, ToSchema};

const DESCRIPTION: &str = "\
An inventory service that never oversells, and shows why.

Every error has a problem (RFC 9457) as its body, with two exceptions: what cannot be read as HTTP at
all is answered 400, and a header that is too large 431, without a body and before any route.";

/// Title, version and licence, and what routes refer to; the routes add themselves.
pub(super) fn head() -> OpenApi {
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Stocklock")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(DESCRIPTION))
                .license(Some(
                    LicenseBuilder::new()
                        .name("MIT OR Apache-2.0")
                        .identifier(Some("MIT OR Apache-2.0"))
                        .build(),
                ))
                .build(),
        )
        .components(Some(
            ComponentsBuilder::new()
                .schema_from::<Problem>()
                .response_from::<NotFound>()
                .response_from::<Conflict>()
                .response_from::<PreconditionFailed>()
                .response_from::<Unavailable>()
                .build(),
        ))
        .build()
}

/// Takes out what only the lab has: the choice of the strategy, and a SKU where none is named.
pub(super) fn without_lab(document: &mut OpenApi) {
    let deduct = document.paths.paths.get_mut("/stock/deduct");
    let parameters = deduct
        .and_then(|path| path.post.as_mut()?.parameters.as_mut())
        .expect("a deduction has parameters");
    let of_the_lab = ["strategy", "guard", "check"];
    parameters.retain(|it| !matches!(it, RefOr::T(it) if of_the_lab.contains(&it.name.as_str())));
    let schemas = document.components.as_mut().map(|it| &mut it.schemas);
    let body = schemas.and_then(|it| it.get_mut("DeductBody"));
    let Some(RefOr::T(Schema::Object(body))) = body else {
        unreachable!("a deduction's body is an object");
    };
    body.required.push("sku".to_owned());
}

/// The document of the production service, or of the lab, as JSON.
#[must_use]
pub fn document(lab: bool) -> Value {
    let document = super::documented(lab).into_openapi();
    serde_json::to_value(document).expect("the document is plain data")
}

/// An error, as RFC 9457 has it.
#[derive(Debug, ToSchema, ToResponse)]
#[expect(dead_code, reason = "a description only; the body is built as JSON")]
pub(super) struct Problem {
    /// A URN of the code.
    #[schema(example = "urn:stocklock:problem:insufficient-stock")]
    r#type: String,
    /// The status in words.
    title: String,
    /// The status.
    status: u16,
    /// What happened and what to do, for people.
    detail: String,
    /// The stable name to branch on.
    #[schema(example = "insufficient-stock")]
    code: String,
    /// The request, as in X-Request-Id and in the log.
    request_id: String,
    /// Units asked for (`insufficient-stock`).
    requested: Option<i64>,
    /// Units that could have been had (`insufficient-stock`).
    available: Option<i64>,
}

macro_rules! problem_response {
    ($name:ident, $description:literal) => {
        #[doc = $description]
        #[derive(ToResponse)]
        #[response(description = $description, content_type = "application/problem+json")]
        #[expect(dead_code, reason = "a description only")]
        pub(super) struct $name(Problem);
    };
}
problem_response!(NotFound, "`unknown-sku`");
problem_response!(
    Conflict,
    "`insufficient-stock`, `request-in-flight` (Retry-After), `wrong-home`, `below-limit`"
);
problem_response!(PreconditionFailed, "`precondition-failed`");
problem_response!(Unavailable, "`not-ready`");

/// What any route that reads the request's fields or the database may answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description only")]
pub(super) enum ReadErrors {
    /// `invalid-request`: parseable, but wrong; where they apply also `invalid-idempotency-key`,
    /// `idempotency-key-reused`, `unknown-strategy`, `strategy-fixed`, `safeguards-fixed`, `level-too-large`
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// `unavailable`, `overloaded`, for writes `contended`, and `strategy-unavailable` where its
    /// service is away, each with Retry-After; without, `strategy-unavailable` and
    /// `home-unavailable` where something is not configured: nothing was changed
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// What any route that writes may answer beside.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "a description only")]
pub(super) enum WriteErrors {
    /// `not-json`, `body-incomplete`, `bad-request`
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
    /// `outcome-unknown`: repeat with the same Idempotency-Key to find out, or after a PUT read the
    /// level again
    #[response(status = 504, content_type = "application/problem+json")]
    Unknown(Problem),
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "a description only")]
pub(super) struct SkuPath {
    /// The SKU: 1 to 64 letters or digits in any script, `.`, `_`, `-`.
    sku: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "a description only")]
pub(super) struct IdempotencyKeyHeader {
    /// The caller's name for this request, 1 to 255 visible ASCII characters. A repeat with the
    /// same key and the same fields answers what the first one did; with other fields, 422
    /// `idempotency-key-reused`.
    #[param(rename = "Idempotency-Key")]
    idempotency_key: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "a description only")]
pub(super) struct PreconditionHeaders {
    /// An `ETag` or several of `GET` or `PUT /stock/{sku}`, weak or not, or `*`.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// `*`: create only.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}
