//! The delay line: one direction of a connection, whose bytes arrive a fixed time after they were
//! sent.
//!
//! The line is a queue: it reads the next bytes while earlier ones are still delayed. So it adds
//! latency, and limits throughput only to [`MAX_CHUNKS`] chunks per delay.

use std::io;
use std::time::Duration;

use async_io::Timer;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The largest number of bytes that are read at once.
const CHUNK: usize = 16 * 1024;

/// The largest number of delayed chunks. Beyond it the line stops reading, so the sender waits.
const MAX_CHUNKS: usize = 64;

/// Copies `from` to `to` with a delay until `from` ends, and then shuts `to` down.
///
/// # Errors
/// If reading or writing fails. Bytes that were read before the error are delivered first.
///
/// # Cancel safety
/// Dropping the future loses the delayed bytes.
pub(super) async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel::<(Instant, io::Result<Bytes>)>(MAX_CHUNKS);
    let reading = async move {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            let read = (&mut from).take(CHUNK as u64).read_buf(&mut buffer).await;
            // Zero bytes mean the end of the stream. An error also ends the copy.
            let last = !matches!(read, Ok(1..));
            let chunk = read.map(|_| buffer.split().freeze());
            let sent = sender.send((Instant::now() + delay, chunk)).await;
            if last || sent.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some((due, chunk)) = receiver.recv().await {
            sleep_until(due).await;
            let bytes = chunk?;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

/// Sleeps until `due`. Tokio's timer has a resolution of one millisecond, which is too coarse here.
pub(super) async fn sleep_until(due: Instant) {
    if due > Instant::now() {
        Timer::at(due.into_std()).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const DELAY: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn large_transfer_is_delayed_once_per_full_queue() {
        let chunks = 8 * MAX_CHUNKS;
        let mut random = fastrand::Rng::with_seed(1);
        let sent: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(chunks * CHUNK)
            .collect();
        let (mut sender, from) = duplex(CHUNK);
        let (to, mut receiver) = duplex(CHUNK);
        let sending = async {
            sender.write_all(&sent).await.unwrap();
            sender.shutdown().await
        };
        let mut arrived = Vec::new();
        let begin = Instant::now();
        let receiving = receiver.read_to_end(&mut arrived);
        tokio::try_join!(carry(from, to, DELAY), sending, receiving).unwrap();
        let took = begin.elapsed();
        assert!(arrived == sent, "{} bytes arrived", arrived.len());
        let chunk_by_chunk = DELAY * u32::try_from(chunks).unwrap();
        assert!(took >= DELAY && took < chunk_by_chunk / 2, "{took:?}");
    }

    #[tokio::test]
    async fn receiver_that_does_not_read_stops_the_sender() {
        let (mut sender, from) = duplex(CHUNK);
        let (to, _receiver) = duplex(CHUNK);
        let _line = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(carry(from, to, DELAY)));
        let mut sent = 0;
        let stopped = async {
            loop {
                sent += sender.write(&[0; CHUNK]).await.unwrap();
            }
        };
        let stopped = tokio::time::timeout(Duration::from_secs(1), stopped);
        assert!(stopped.await.is_err(), "the sender is never stopped");
        let is_bounded = sent <= (MAX_CHUNKS + 5) * CHUNK;
        assert!(is_bounded, "{sent} bytes are buffered");
    }
}
