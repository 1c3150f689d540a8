//! The delay line: one direction of a connection, whose bytes arrive a fixed time after they were
//! sent, as on a longer cable.
//!
//! It is a queue and no brake: while one piece is on its way the next ones are taken in, so that
//! only latency is added, and throughput is bounded by [`ROOM`] for each delay.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_io::Timer;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// The most bytes that are taken in as one piece.
const PIECE: usize = 16 * 1024;

/// The most bytes that may be on their way; then the sender waits, as it would for a full window.
const ROOM: usize = 1024 * 1024;

/// What a piece takes of that at least, so that tiny ones do not cost more memory than they count.
const LEAST: usize = 256;

/// What was read, when it is to arrive, and the room that it takes until then.
struct Piece {
    /// No bytes are the end of the stream.
    read: io::Result<Bytes>,
    due: Instant,
    _room: OwnedSemaphorePermit,
}

/// Carries everything from one end to the other, `delay` later, and in the end the end itself: the
/// receiver's side is shut down, the other direction may go on.
///
/// # Errors
/// Where an end is broken, once all that was read before has arrived. This takes the delay too.
///
/// # Cancel safety
/// What is on its way is lost.
pub(super) async fn carry(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> io::Result<()> {
    let (sent, arriving) = mpsc::unbounded_channel();
    let sending = async {
        take_in(from, sent, delay).await;
        Ok(())
    };
    tokio::try_join!(sending, hand_out(arriving, to, delay))?;
    Ok(())
}

/// Until the delay is over, exactly: tokio's own timer knows whole milliseconds only, and half of
/// one is a usual delay here.
pub(super) async fn until(due: Instant) {
    if due > Instant::now() {
        Timer::at(due.into_std()).await;
    }
}

/// Takes in what is sent until that ends, one way or the other.
async fn take_in(
    mut from: impl AsyncRead + Unpin,
    sent: mpsc::UnboundedSender<Piece>,
    delay: Duration,
) {
    let room = Arc::new(Semaphore::new(ROOM));
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        let read = (&mut from).take(PIECE as u64).read_buf(&mut buffer).await;
        let due = Instant::now() + delay;
        let read = read.map(|_| buffer.split().freeze());
        let length = read.as_ref().map_or(0, Bytes::len);
        let needed = u32::try_from(length.max(LEAST)).expect("a piece is small");
        let room = Arc::clone(&room).acquire_many_owned(needed).await;
        let piece = Piece {
            read,
            due,
            _room: room.expect("the semaphore is never closed"),
        };
        if sent.send(piece).is_err() || length == 0 {
            return;
        }
    }
}

/// Hands each piece out when it is due.
async fn hand_out(
    mut arriving: mpsc::UnboundedReceiver<Piece>,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> io::Result<()> {
    while let Some(piece) = arriving.recv().await {
        until(piece.due).await;
        let bytes = piece.read?;
        let written = if bytes.is_empty() {
            to.shutdown().await
        } else {
            to.write_all(&bytes).await
        };
        if let Err(error) = written {
            // The sender is to learn of it no sooner than over that cable; what comes the other
            // way arrives meanwhile.
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

    /// Bytes of which no two stretches are alike.
    fn noise(length: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(1);
        std::iter::repeat_with(|| random.u8(..))
            .take(length)
            .collect()
    }

    #[tokio::test]
    async fn what_is_sent_arrives_whole_in_order_and_no_sooner_than_due() {
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
    async fn a_large_transfer_waits_for_the_delay_once_and_not_for_each_piece() {
        let sent = noise(8 * 1024 * 1024);
        let (mut sender, from) = duplex(PIECE);
        let (to, mut receiver) = duplex(PIECE);
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
        let piece_by_piece = DELAY * u32::try_from(sent.len() / PIECE).unwrap();
        assert!(took >= DELAY && took < piece_by_piece / 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_receiver_that_does_not_read_stops_the_sender() {
        let (mut sender, from) = duplex(PIECE);
        let (to, mut receiver) = duplex(PIECE);
        let line = tokio::spawn(carry(from, to, Duration::ZERO));
        let mut sent = 0;
        let stopped = async {
            loop {
                sent += sender.write(&[0; 1024]).await.unwrap();
            }
        };
        let stopped = tokio::time::timeout(Duration::from_millis(500), stopped);
        assert!(stopped.await.is_err(), "nothing stops it");
        assert!(sent <= ROOM + 4 * PIECE, "{sent} bytes are buffered");
        drop(sender);
        let mut arrived = Vec::new();
        receiver.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived.len(), sent);
        line.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_receiver_that_is_gone_ends_the_line_though_the_sender_is_there() {
        let (mut sender, from) = duplex(PIECE);
        let (to, receiver) = duplex(PIECE);
        drop(receiver);
        sender.write_all(b"anybody there?").await.unwrap();
        let begin = Instant::now();
        let error = carry(from, to, DELAY).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(begin.elapsed() >= 2 * DELAY, "there and back");
    }
}
