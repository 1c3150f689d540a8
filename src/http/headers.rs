//! The headers of requests and responses: entity tags, `Idempotency-Key`, `Idempotent-Replayed`.

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use serde::Serialize;

use super::ApiError;
use stocklock_core::level_service::Changed;
use stocklock_core::stock::{
    Caller, Idempotency, IdempotencyKey, OperationId, RequestHash, Revision, StockError,
};

/// The caller's name for a request, which makes the request safe to retry.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The request's key, if there is one, with the hash of the request.
pub(super) fn idempotency(
    headers: &HeaderMap,
    caller: &Caller,
    hash: RequestHash,
) -> Result<Option<Idempotency>, ApiError> {
    let key = idempotency_key(headers)?;
    Ok(key.map(|key| Idempotency {
        caller: caller.clone(),
        key,
        hash,
    }))
}

/// The request's key, if there is one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let refused = |detail| ApiError::unprocessable("invalid-idempotency-key", detail);
    if keys.next().is_some() {
        return Err(refused("Idempotency-Key must be sent once"));
    }
    let key = key.to_str();
    let key = key.map_err(|_| refused("Idempotency-Key must be visible ASCII"))?;
    IdempotencyKey::parse(key).map(Some).map_err(refused)
}

/// `Idempotent-Replayed: true`, for an answer that repeats the answer to an earlier request.
pub(super) fn idempotent_replayed(replayed: bool) -> Option<[(&'static str, &'static str); 1]> {
    replayed.then_some([("idempotent-replayed", "true")])
}

/// The answer to a request that has made an operation.
pub(super) fn answer<T: Serialize>(
    (operation, made): (OperationId, Result<Changed, StockError>),
    body: impl FnOnce(Changed) -> T,
) -> Result<impl IntoResponse, ApiError> {
    let made = made.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(made.replayed), Json(body(made))))
}

/// `revision` as an `ETag`.
pub(super) fn etag(revision: &Revision) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{revision}\""))]
}

/// The tags of `If-Match` or `If-None-Match`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tags {
    /// `*`: any state.
    Any,
    /// One or more tags.
    OneOf(Vec<Revision>),
}

impl Tags {
    /// The tags of all lines of the header; `None` if the header is absent. An error if the header
    /// is neither `*` nor a list of quoted tags.
    pub(super) fn from_headers(
        headers: &HeaderMap,
        name: HeaderName,
    ) -> Result<Option<Self>, ApiError> {
        let lines = headers.get_all(name).iter().map(HeaderValue::to_str);
        let lines = lines.collect::<Result<Vec<_>, _>>();
        let lines = lines.map_err(|_| bad_precondition())?;
        if lines.is_empty() {
            return Ok(None);
        }
        let list = lines.join(",");
        if list.trim() == "*" {
            return Ok(Some(Self::Any));
        }
        match revisions(&list) {
            Some(revisions) if !revisions.is_empty() => Ok(Some(Self::OneOf(revisions))),
            _ => Err(bad_precondition()),
        }
    }

    /// Whether `revision` is among them.
    pub(super) fn include(&self, revision: &Revision) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(revisions) => revisions.contains(revision),
        }
    }
}

pub(super) fn bad_precondition() -> ApiError {
    ApiError::invalid("If-Match needs ETags in quotes or *, and If-None-Match needs *")
}

/// The tags of a list. Weak tags count as strong: a tag stands for the state of the stock and not for
/// bytes, and a proxy that compresses makes it weak.
fn revisions(list: &str) -> Option<Vec<Revision>> {
    let mut revisions = Vec::new();
    let mut rest = skip_separators(list);
    while !rest.is_empty() {
        let quoted = rest.strip_prefix("W/").unwrap_or(rest).strip_prefix('"')?;
        let (tag, after) = quoted.split_once('"')?;
        revisions.push(Revision::from_text(tag));
        rest = skip_separators(after);
        if rest.len() == after.len() && !rest.is_empty() {
            return None;
        }
    }
    Some(revisions)
}

/// Empty elements of a list are ignored.
fn skip_separators(list: &str) -> &str {
    list.trim_start_matches([' ', '\t', ','])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<Option<Tags>, String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_bytes(line.as_bytes()).expect("a header value");
            headers.append(header::IF_MATCH, line);
        }
        Tags::from_headers(&headers, header::IF_MATCH).map_err(|error| error.detail)
    }

    fn one_of(tags: &[&str]) -> Tags {
        Tags::OneOf(tags.iter().copied().map(Revision::from_text).collect())
    }

    #[test]
    fn all_header_lines_form_one_list_and_weak_tags_count() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[" * "]), Ok(Some(Tags::Any)));
        assert_eq!(read(&["\"a\""]), Ok(Some(one_of(&["a"]))));
        assert_eq!(
            read(&["\"a\" ,, W/\"b\"", "", "\"c,d\""]),
            Ok(Some(one_of(&["a", "b", "c,d"])))
        );
    }

    #[test]
    fn malformed_list_is_refused() {
        let malformed = "|,|a|'a|a'|'a' b|'a''b'|w/'a'|W/|W/*|*, 'a'|'a', *|'ä'";
        for line in malformed.split('|') {
            let line = line.replace('\'', "\"");
            assert!(read(&[&line]).is_err(), "{line}");
        }
        assert!(read(&["*", "*"]).is_err());
    }
}
