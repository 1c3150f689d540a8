//! A TCP stream with a timeout for each wait for the client.
//!
//! hyper has one timer for the silence before a request and for the request's header. But a
//! keep-alive connection behind a proxy needs a long timeout, and an incomplete header a short one.
//! So this stream keeps its own timer; the bytes and the requests decide which limit applies. It is shorter
//! while the server is crowded.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::config::Limits;
use crate::crowd::Crowd;

const NEW: u8 = 0;
const HEADER: u8 = 1;
const SERVING: u8 = 2;
const IDLE: u8 = 3;
/// Used for the timer only: the client does not read the answer.
const WRITING: u8 = 4;

/// What the connection is doing. The stream sets it for bytes, the service for requests.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    /// The header of a request is complete.
    pub(super) fn start_serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    /// The answer is ready to be written.
    pub(super) fn become_idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the last request is answered, and no byte of the next has arrived.
    pub(super) fn is_idle(&self) -> bool {
        self.get() == IDLE
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that fails when its client is silent for too long.
pub(super) struct TimedIo {
    stream: TcpStream,
    phase: Arc<Phase>,
    limits: Arc<Limits>,
    crowd: Crowd,
    /// Boxed because tokio's timer must not move; allocated once per connection.
    timer: Pin<Box<Sleep>>,
    /// The wait that the timer is set for.
    timed: Option<u8>,
    /// When this wait began.
    since: Instant,
}

impl TimedIo {
    pub(super) fn new(
        stream: TcpStream,
        phase: Arc<Phase>,
        limits: Arc<Limits>,
        crowd: Crowd,
    ) -> Self {
        let since = Instant::now();
        let first_byte = since + limits.first_byte_timeout_ms;
        Self {
            stream,
            phase,
            limits,
            crowd,
            timer: Box::pin(tokio::time::sleep_until(first_byte)),
            timed: Some(NEW),
            since,
        }
    }

    /// Pending until the limit of `wait` has passed; then an error, which closes the connection.
    fn poll_limit<T>(&mut self, wait: u8, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let limit = match wait {
            NEW => self.crowd.wait(self.limits.first_byte_timeout_ms),
            HEADER | WRITING => self.crowd.wait(self.limits.header_timeout_ms),
            // Those that are idle close at once if the server is crowded.
            IDLE => self.limits.idle_timeout_ms,
            _ => return Poll::Pending,
        };
        if self.timed.replace(wait) != Some(wait) {
            self.since = Instant::now();
        }
        let end = self.since + limit;
        if self.timer.deadline() != end {
            self.timer.as_mut().reset(end);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let phase = this.phase.get();
        match read {
            // While an answer is being written, `poll_write` keeps the timer.
            Poll::Pending if this.timed == Some(WRITING) => return Poll::Pending,
            Poll::Pending => return this.poll_limit(phase, cx),
            Poll::Ready(_) => {}
        }
        if buffer.filled().len() > before && matches!(phase, NEW | IDLE) {
            this.phase.0.store(HEADER, Ordering::Relaxed);
            this.timed = None;
        }
        read
    }
}

impl AsyncWrite for TimedIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if written.is_pending() {
            return this.poll_limit(WRITING, cx);
        }
        // A successful write shows that the client is alive: the next wait has a new timer.
        this.timed = None;
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        // A flush is the last thing that hyper does with an answer. It may not read again until it
        // is woken, so the idle timer must start here. When the timer fires, hyper is woken, reads,
        // and gets the error from `poll_read`.
        if this.phase.get() == IDLE {
            let _ = this.poll_limit::<()>(IDLE, cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
