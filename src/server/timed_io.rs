//! A connection that gives up waiting for its client.
//!
//! hyper has one timer for the silence before a request and for its header alike; a kept-alive
//! connection behind a proxy must be allowed a long silence, a half-sent header must not. So the
//! stream itself watches: which wait is under way follows from what was read and what is being
//! served.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::ServerLimits;

const NEW: u8 = 0;
const HEADER: u8 = 1;
const SERVING: u8 = 2;
const IDLE: u8 = 3;
/// Not a phase of its own: an answer that the client does not take.
const WRITING: u8 = 4;

/// What the connection is doing, told by the stream (bytes) and by the service (requests).
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    /// A request's header is complete.
    pub(super) fn serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    /// Its answer is ready.
    pub(super) fn idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Whether nothing is asked, but was before.
    pub(super) fn is_idle(&self) -> bool {
        self.get() == IDLE
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) struct TimedIo {
    stream: TcpStream,
    phase: Arc<Phase>,
    limits: ServerLimits,
    /// Boxed because tokio's timer must not move; made once for each connection.
    timer: Pin<Box<Sleep>>,
    /// The wait that the timer was set for.
    timed: Option<u8>,
}

impl TimedIo {
    pub(super) fn new(stream: TcpStream, phase: Arc<Phase>, limits: ServerLimits) -> Self {
        let timer = Box::pin(tokio::time::sleep(limits.first_byte));
        Self {
            stream,
            phase,
            limits,
            timer,
            timed: Some(NEW),
        }
    }

    /// Pending until the wait's limit has passed; then an error, which closes the connection.
    fn poll_limit<T>(&mut self, wait: u8, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let limit = match wait {
            NEW => self.limits.first_byte,
            HEADER | WRITING => self.limits.header,
            IDLE => self.limits.idle,
            _ => return Poll::Pending,
        };
        if self.timed != Some(wait) {
            self.timer.as_mut().reset(Instant::now() + limit);
            self.timed = Some(wait);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// A write that went through is a sign of life: whatever is waited for next, the wait begins
    /// anew.
    fn poll_written<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll_limit(WRITING, cx);
        }
        self.timed = None;
        written
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
        if read.is_pending() {
            // While an answer is under way, its own wait is timed on the writing side.
            return if this.timed == Some(WRITING) {
                Poll::Pending
            } else {
                this.poll_limit(phase, cx)
            };
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
        this.poll_written(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.poll_written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        // The last that hyper does with an answer. It reads again only if it did not try to while
        // the answer was being made, so the wait for the next request is timed from here; when it
        // is over, hyper is woken, reads, and is told.
        if this.phase.get() == IDLE {
            let _ = this.poll_limit::<()>(IDLE, cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
