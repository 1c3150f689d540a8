//! Strict extractors: [`StrictQuery`], [`StrictJson`] and [`BatchJson`]. They refuse a field that is unknown,
//! duplicate, `null`, of the wrong type or out of range, and the refusal names the field.

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::Api;
use super::body::{self, ReadBody};
use super::error::ApiError;
use stocklock_core::stock::{OperationId, Remark};
use stocklock_core::whole::whole;

/// The fields of the query.
#[derive(Debug)]
pub(super) struct StrictQuery<T>(pub(super) T);

/// A query without fields. An ignored filter would make the result look filtered.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoFields {}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        let pairs = || serde_urlencoded::Deserializer::new(form_urlencoded::parse(query));
        if let Ok(fields) = T::deserialize(pairs()) {
            return Ok(Self(fields));
        }
        // Only now, because to follow the path to each field takes longer.
        let fields = serde_path_to_error::deserialize(pairs());
        fields.map(Self).map_err(|error| invalid_field(&error))
    }
}

/// A JSON object as the body, read within the body's bounds.
///
/// The handler calls [`StrictJson::parse`], so that it can check the path and the query first.
#[derive(Debug)]
pub(super) struct StrictJson<T> {
    body: ReadBody,
    content_type: Result<(), ApiError>,
    fields: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for StrictJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        Self::read(request, api.config.limits.max_body_bytes, api).await
    }
}

/// The same for a batch, whose body may be larger.
#[derive(Debug)]
pub(super) struct BatchJson<T>(pub(super) StrictJson<T>);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for BatchJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let max_bytes = api.config.limits.max_batch_body_bytes;
        Ok(Self(StrictJson::read(request, max_bytes, api).await?))
    }
}

impl<T: DeserializeOwned> StrictJson<T> {
    async fn read(request: Request, max_bytes: u32, api: &Api) -> Result<Self, ApiError> {
        let content_type = check_content_type(request.headers(), "application/json");
        Ok(Self {
            body: body::read(request.into_body(), max_bytes, api).await?,
            content_type,
            fields: PhantomData,
        })
    }

    /// Whether there is no body.
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Checks the content type, and parses the fields.
    pub(super) fn parse(self) -> Result<T, ApiError> {
        self.content_type?;
        let is_space = |byte: &u8| byte.is_ascii_whitespace();
        let bytes = self.body.bytes();
        let bytes = &bytes[..];
        // serde would accept an array of the fields in their order.
        if bytes.iter().find(|byte| !is_space(byte)) != Some(&b'{') {
            return Err(match serde_json::from_slice::<IgnoredAny>(bytes) {
                Ok(_) => ApiError::invalid("the body must be a JSON object"),
                Err(error) => not_json(&error),
            });
        }
        if let Ok(fields) = serde_json::from_slice(bytes) {
            return Ok(fields);
        }
        // As in the query, the path to each field is followed only after an error.
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let fields = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            if error.inner().is_data() {
                invalid_field(&error)
            } else {
                not_json(error.inner())
            }
        })?;
        reader.end().map_err(|error| not_json(&error))?;
        Ok(fields)
    }
}

/// Refuses a body of another type.
pub(super) fn check_content_type(headers: &HeaderMap, expected: &str) -> Result<(), ApiError> {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next());
    if essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported-media-type",
        format!("send the body as Content-Type: {expected}"),
    ))
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "not-json",
        format!("the body is not JSON: {error}"),
    )
}

fn invalid_field(error: &serde_path_to_error::Error<impl Display>) -> ApiError {
    let (path, inner) = (error.path().to_string(), error.inner());
    ApiError::invalid(match path.as_str() {
        "." => inner.to_string(),
        field => format!("{field}: {inner}"),
    })
}

/// The remark in the field with this name, if it was sent.
pub(super) fn remark(name: &str, text: Option<String>) -> Result<Option<Remark>, ApiError> {
    let remark = text.map(|text| Remark::parse(name, text)).transpose();
    remark.map_err(ApiError::invalid)
}

/// The operation in the path, as a UUID with hyphens.
pub(super) fn operation_id(text: &str) -> Result<OperationId, ApiError> {
    let id = Some(text).filter(|text| text.len() == Hyphenated::LENGTH);
    let id = id.and_then(|text| Uuid::parse_str(text).ok());
    let problem = "id: send the id of an operation, a UUID with hyphens";
    let id = id.ok_or_else(|| ApiError::invalid(problem))?;
    Ok(OperationId(id))
}

/// For an optional field of a JSON body: it may be absent, but not `null`.
pub(super) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// For an optional whole number of a JSON body.
pub(super) fn present_whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    whole(deserializer).map(Some)
}

/// For a list of JSON objects. serde would accept an array of the fields in their order as an object.
pub(super) fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list: Vec<Object<T>> = Vec::deserialize(deserializer)?;
    Ok(list.into_iter().map(|Object(fields)| fields).collect())
}

/// The same for an optional field.
pub(super) fn present_objects<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    objects(deserializer).map(Some)
}

pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Object<T>, M::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}
