//! Clients that do not finish their requests do not use up the memory of a small container.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Instant, SOON};
use crate::limits::send_incomplete_batch;
use crate::support::process::Process;

/// How many clients do not finish their requests, and how.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unfinished {
    /// A header of 39 KB, more than is accepted.
    pub(super) large_headers: usize,
    /// A header of almost 16 KiB.
    pub(super) headers: usize,
    /// Such a header, and a body of almost 16 KiB, which needs no budget.
    pub(super) small_bodies: usize,
    /// A batch of 1 MiB.
    pub(super) bodies: usize,
}

const KIB: usize = 1024;

impl Unfinished {
    /// The peak of the replica's memory while it waits for the rest, in KiB.
    pub(super) async fn peak(self) -> u64 {
        let limits = [("HEADER_TIMEOUT_MS", "60000"), ("BODY_TIMEOUT_MS", "60000")];
        let serve = Process::serving(&["serve"], &limits).await;
        let of_header = |size: usize| format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(size));
        let small_body = format!(
            "POST /stock/deduct/batch HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nX: {}\r\n\r\n{}",
            16 * KIB,
            "x".repeat(15 * KIB),
            " ".repeat(16 * KIB - 1),
        );
        let mut open = Vec::new();
        for (count, request) in [
            (self.large_headers, of_header(39_000)),
            (self.headers, of_header(16 * KIB - 100)),
            (self.small_bodies, small_body),
        ] {
            for _ in 0..count {
                let stream = TcpStream::connect(serve.address()).await;
                let mut stream = stream.expect("it listens");
                // A replica that refuses the header may close the connection before it has arrived.
                let _ = stream.write_all(request.as_bytes()).await;
                open.push(stream);
            }
        }
        let send_incomplete = |_| send_incomplete_batch(serve.address());
        let mut bodies: JoinSet<_> = (0..self.bodies).map(send_incomplete).collect();
        // The memory for large bodies is enough for 64; the others are refused.
        let refused = async {
            while bodies.len() > 64 {
                bodies.join_next().await.expect("a body").expect("no panic");
            }
        };
        timeout(SOON, refused)
            .await
            .expect("the others are refused");
        until_settled(&serve).await;
        let peak = serve.peak_memory();
        println!("figure: {self:?}: {} MiB", peak / 1024);
        peak
    }
}

async fn until_settled(serve: &Process) {
    let (mut peak, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        let now = serve.peak_memory();
        if now > peak {
            (peak, since) = (now, Instant::now());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// The budget is 64 MiB. The other connections have at most 64 KiB each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_have_little_more_than_the_budget() {
    let idle = Unfinished::default().peak().await;
    let unfinished = Unfinished {
        large_headers: 200,
        headers: 100,
        small_bodies: 100,
        bodies: 200,
    };
    let peak = unfinished.peak().await;
    assert!(peak - idle < 120 * 1024, "{peak} KiB, {idle} KiB before");
}
