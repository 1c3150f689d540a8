//! Reads the body of a request within its bounds: its size, its time, and the memory of all bodies.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::{Api, ApiError};
use crate::crowd::CROWDED_WAIT;
use stocklock_core::stock::StockError;

/// The memory of all large bodies together. A body of the largest permitted
/// `MAX_BATCH_BODY_BYTES` (16 MiB) fits.
const BUDGET: usize = 64 * 1024 * 1024;

/// What each body may have outside the budget. So large bodies that do not end cause only other large
/// ones to be refused.
const FREE: usize = 16 * 1024;

/// A body grows beyond [`FREE`] in parts of this size. It is not one buffer that grows, because the buffers
/// that it leaves behind take several times its memory.
const STEP: usize = 64 * 1024;

/// The memory that is left for large bodies, in steps.
#[derive(Debug)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET / STEP)))
    }
}

/// A complete body. Its memory is counted until it is dropped.
#[derive(Debug, Default)]
pub(super) struct ReadBody {
    /// Its first [`FREE`] bytes.
    start: Vec<u8>,
    /// The others.
    parts: Vec<Vec<u8>>,
    len: usize,
    budget: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `max_bytes`.
pub(super) async fn read(body: Body, max_bytes: u32, api: &Api) -> Result<ReadBody, ApiError> {
    let limit = api.config.limits.body_timeout_ms;
    let read = timeout(limit, collect(body, max_bytes as usize, api)).await;
    read.unwrap_or_else(|_elapsed| Err(too_slow()))
}

async fn collect(mut body: Body, max_bytes: usize, api: &Api) -> Result<ReadBody, ApiError> {
    let mut read = ReadBody::default();
    loop {
        let frame = match timeout(CROWDED_WAIT, body.frame()).await {
            Ok(Some(frame)) => frame.map_err(|_| incomplete())?,
            Ok(None) => return Ok(read),
            Err(_elapsed) if api.crowd.is_crowded() || read.is_in_the_way(&api.bodies) => {
                return Err(too_slow());
            }
            Err(_elapsed) => continue,
        };
        // Trailers are ignored.
        if let Ok(data) = frame.into_data() {
            if read.len + data.len() > max_bytes {
                return Err(too_large(max_bytes));
            }
            read.push(&data, &api.bodies)?;
        }
    }
}

impl ReadBody {
    /// Whether it has a part of the budget while less than a quarter is left for others.
    fn is_in_the_way(&self, bodies: &BodyBudget) -> bool {
        self.budget.is_some() && bodies.0.available_permits() < BUDGET / STEP / 4
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The body in one piece. Only a large one is copied.
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        if self.parts.is_empty() {
            return Cow::Borrowed(&self.start);
        }
        let mut bytes = Vec::with_capacity(self.len);
        bytes.extend_from_slice(&self.start);
        self.parts
            .iter()
            .for_each(|part| bytes.extend_from_slice(part));
        Cow::Owned(bytes)
    }

    /// Copies `data`: a chunk of the connection may keep much more memory than its bytes.
    fn push(&mut self, mut data: &[u8], bodies: &BodyBudget) -> Result<(), ApiError> {
        let len = self.len + data.len();
        let steps = len.saturating_sub(FREE).div_ceil(STEP);
        if steps > self.parts.len() {
            let more = u32::try_from(steps - self.parts.len()).expect("max_bytes fits");
            let more = Arc::clone(&bodies.0).try_acquire_many_owned(more);
            let more = more.map_err(|_| overloaded())?;
            match &mut self.budget {
                Some(budget) => budget.merge(more),
                None => self.budget = Some(more),
            }
        }
        data = fill(&mut self.start, FREE, data);
        while !data.is_empty() {
            match self.parts.last_mut() {
                Some(part) if part.len() < STEP => data = fill(part, STEP, data),
                _ => self.parts.push(Vec::with_capacity(STEP)),
            }
        }
        self.len = len;
        Ok(())
    }
}

/// Appends as much of `data` as `part` may have. Returns the rest.
fn fill<'a>(part: &mut Vec<u8>, limit: usize, data: &'a [u8]) -> &'a [u8] {
    let room = limit.saturating_sub(part.len()).min(data.len());
    let (data, rest) = data.split_at(room);
    let len = part.len() + room;
    if len > part.capacity() {
        part.reserve_exact(limit.min(2 * len) - part.len());
    }
    part.extend_from_slice(data);
    rest
}

pub(super) fn incomplete() -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "body-incomplete",
        "the body ended early or has invalid framing",
    )
}

pub(super) fn too_slow() -> ApiError {
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        "request-timeout",
        "the body did not arrive in time",
    )
}

fn too_large(max_bytes: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body-too-large",
        format!("the body must have at most {max_bytes} bytes"),
    )
}

fn overloaded() -> ApiError {
    let what = "other large bodies are being received";
    StockError::Overloaded { what }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_bodies_use_the_budget() {
        let bodies = BodyBudget(Arc::new(Semaphore::new(3)));
        let data: Vec<u8> = (0..251).cycle().take(STEP + 1).collect();
        let left = || bodies.0.available_permits();
        let (mut small, mut large) = (ReadBody::default(), ReadBody::default());
        small.push(&data[..FREE], &bodies).expect("it is small");
        assert_eq!(left(), 3);
        for steps_left in [2, 1] {
            large.push(&data[..STEP], &bodies).expect("there is room");
            assert_eq!(left(), steps_left);
        }
        let memory: usize = large.parts.iter().map(Vec::capacity).sum();
        assert_eq!(large.start.capacity() + memory, FREE + 2 * STEP);
        let refused = small.push(&data, &bodies).expect_err("too much");
        assert_eq!(refused.code, "overloaded");
        small.push(&data[..STEP], &bodies).expect("it fits");
        assert_eq!(left(), 0);
        assert!(large.bytes() == [&data[..STEP], &data[..STEP]].concat());
        assert!(small.bytes() == [&data[..FREE], &data[..STEP]].concat());
        drop(large);
        assert_eq!(left(), 2);
    }
}
