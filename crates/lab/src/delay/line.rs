//! The delay line: one direction of a connection, whose bytes arrive a fixed time after they were
//! sent.
//!
//! It is a queue: it reads the next bytes while earlier ones are still delayed. So it adds latency,
//! and limits throughput only to [`CAPACITY`] per delay.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_io::Timer;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// The largest number of bytes that are read at once.
const CHUNK: usize = 16 * 1024;

/// The largest number of delayed bytes. Beyond it the line stops reading, so the sender waits.
const CAPACITY: usize = 1024 * 1024;

/// A smaller chunk counts as this many bytes, because of the memory that a chunk itself takes.
const MIN_COST: usize = 256;

/// The result of one read, and the time at which it is delivered.
struct Chunk {
    /// No bytes: the end of the stream.
    read: io::Result<Bytes>,
    due: Instant,
    _capacity: OwnedSemaphorePermit,
}

/// Copies `from` to `to` with a delay until `from` ends, and then shuts `to` down.
///
/// # Errors
/// If reading or writing fails. Bytes that were read before the error are delivered first, and the
/// error is delayed like the bytes.
///
/// # Cancel safety
/// Dropping the future loses the delayed bytes.
pub(super) async fn carry(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> io::Result<()> {
    let (sent, arriving) = mpsc::unbounded_channel();
    let sending = async {
        read_chunks(from, sent, delay).await;
        Ok(())
    };
    tokio::try_join!(sending, write_chunks(arriving, to, delay))?;
    Ok(())
}

/// Sleeps until `due`. Tokio's timer has a resolution of one millisecond, which is too coarse here.
pub(super) async fn until(due: Instant) {
    if due > Instant::now() {
        Timer::at(due.into_std()).await;
    }
}

/// Reads until the end of the stream or an error; both are the last chunk.
async fn read_chunks(
    mut from: impl AsyncRead + Unpin,
    sent: mpsc::UnboundedSender<Chunk>,
    delay: Duration,
) {
    let capacity = Arc::new(Semaphore::new(CAPACITY));
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        let read = (&mut from).take(CHUNK as u64).read_buf(&mut buffer).await;
        let due = Instant::now() + delay;
        let read = read.map(|_| buffer.split().freeze());
        let length = read.as_ref().map_or(0, Bytes::len);
        let needed = u32::try_from(length.max(MIN_COST)).expect("a chunk is at most 16 KiB");
        let permit = Arc::clone(&capacity).acquire_many_owned(needed).await;
        let chunk = Chunk {
            read,
            due,
            _capacity: permit.expect("the semaphore is never closed"),
        };
        if sent.send(chunk).is_err() || length == 0 {
            return;
        }
    }
}

/// Writes each chunk when it is due.
async fn write_chunks(
    mut arriving: mpsc::UnboundedReceiver<Chunk>,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> io::Result<()> {
    while let Some(chunk) = arriving.recv().await {
        until(chunk.due).await;
        let bytes = chunk.read?;
        let written = if bytes.is_empty() {
            to.shutdown().await
        } else {
            to.write_all(&bytes).await
        };
        if let Err(error) = written {
            // The error reaches the sender one delay later, as it would over a network.
            until(Instant::now() + delay).await;
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const DELAY: Duration = Duration::from_millis(20);

    /// Random bytes, so that a lost or repeated part is noticed.
    fn noise(length: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(1);
        std::iter::repeat_with(|| random.u8(..))
            .take(length)
            .collect()
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_after_the_delay() {
        let (mut sender, from) = duplex(64 * 1024);
        let (to, mut receiver) = duplex(64 * 1024);
        let line = tokio::spawn(carry(from, to, DELAY));
        for number in 0..10_u8 {
            let begin = Instant::now();
            sender.write_all(&[number; 3]).await.unwrap();
            let mut arrived = [0; 3];
            receiver.read_exact(&mut arrived).await.unwrap();
            assert_eq!(arrived, [number; 3]);
            assert!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
        }
        drop(sender);
        assert_eq!(receiver.read(&mut [0; 3]).await.unwrap(), 0);
        line.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn large_transfer_is_delayed_once() {
        let sent = noise(8 * 1024 * 1024);
        let (mut sender, from) = duplex(CHUNK);
        let (to, mut receiver) = duplex(CHUNK);
        let line = carry(from, to, DELAY);
        let sending = async {
            sender.write_all(&sent).await.unwrap();
            sender.shutdown().await
        };
        let mut arrived = Vec::new();
        let begin = Instant::now();
        let receiving = receiver.read_to_end(&mut arrived);
        tokio::try_join!(line, sending, receiving).unwrap();
        let took = begin.elapsed();
        assert!(arrived == sent, "{} bytes arrived", arrived.len());
        let chunk_by_chunk = DELAY * u32::try_from(sent.len() / CHUNK).unwrap();
        assert!(took >= DELAY && took < chunk_by_chunk / 2, "{took:?}");
    }

    #[tokio::test]
    async fn receiver_that_does_not_read_stops_the_sender() {
        let (mut sender, from) = duplex(CHUNK);
        let (to, mut receiver) = duplex(CHUNK);
        let line = tokio::spawn(carry(from, to, Duration::ZERO));
        let mut sent = 0;
        let stopped = async {
            loop {
                sent += sender.write(&[0; 1024]).await.unwrap();
            }
        };
        let stopped = tokio::time::timeout(Duration::from_millis(500), stopped);
        assert!(stopped.await.is_err(), "the sender is never stopped");
        assert!(sent <= CAPACITY + 4 * CHUNK, "{sent} bytes are buffered");
        drop(sender);
        let mut arrived = Vec::new();
        receiver.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived.len(), sent);
        line.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn closed_receiver_ends_the_line() {
        let (mut sender, from) = duplex(CHUNK);
        let (to, receiver) = duplex(CHUNK);
        drop(receiver);
        sender.write_all(b"request").await.unwrap();
        let begin = Instant::now();
        let error = carry(from, to, DELAY).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(begin.elapsed() >= 2 * DELAY, "the error came too early");
    }
}
