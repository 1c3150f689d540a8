//! The proxy's modes, and its triggers that cut.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::{SILENCE, SOON, eventually};
use crate::support::proxy::{Mode, Proxy};

/// A server that answers every byte with the same byte, and a proxy before it.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = client.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    Proxy::to(address.to_string()).await
}

async fn send_and_receive(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    let mut answer = vec![0; text.len()];
    stream.write_all(text).await?;
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, text);
    Ok(())
}

#[tokio::test]
async fn a_proxy_that_refuses_cuts_old_connections_and_takes_no_new_ones() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stream, b"there").await.unwrap();

    proxy.set(Mode::Refuse).await;
    send_and_receive(&mut stream, b"cut").await.unwrap_err();
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    proxy.set(Mode::Pass).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stream, b"back").await.unwrap();
}

#[tokio::test]
async fn a_blackhole_is_silent_and_gives_everything_back_when_it_ends() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stream, b"there").await.unwrap();

    proxy.set(Mode::Blackhole).await;
    stream.write_all(b"late").await.unwrap();
    let mut answer = [0; 4];
    timeout(SILENCE, stream.read_exact(&mut answer))
        .await
        .expect_err("nothing passes");

    proxy.set(Mode::Pass).await;
    timeout(SOON, stream.read_exact(&mut answer))
        .await
        .expect("it passes again")
        .unwrap();
    assert_eq!(&answer, b"late");
}

#[tokio::test]
async fn a_stranded_connection_stays_silent_while_a_new_one_passes() {
    let proxy = echo().await;
    let mut stranded = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stranded, b"there").await.unwrap();

    proxy.set(Mode::Strand).await;
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut new, b"there").await.unwrap();
    proxy.set(Mode::Pass).await;
    stranded.write_all(b"lost").await.unwrap();
    timeout(SILENCE, stranded.read(&mut [0; 4]))
        .await
        .expect_err("nothing passes, not even an end");
}

#[tokio::test]
async fn a_delay_holds_each_direction_up() {
    let proxy = echo().await;
    let delay = Duration::from_millis(30);
    proxy.set(Mode::Delay(delay)).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let begin = Instant::now();
    send_and_receive(&mut stream, b"slow").await.unwrap();
    assert!(begin.elapsed() >= 2 * delay, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_pattern_is_found_across_two_reads_and_only_while_armed() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    // Seen before the trigger exists: not its business.
    send_and_receive(&mut stream, b"STOP").await.unwrap();
    let trigger = proxy.cut_before(b"STOP", 2);
    send_and_receive(&mut stream, b"...ST").await.unwrap();
    send_and_receive(&mut stream, b"OP").await.unwrap_err();
    assert_eq!(trigger.fired(), 1);

    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stream, b"STOP").await.unwrap_err();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    send_and_receive(&mut stream, b"STOP").await.unwrap();
    assert_eq!(trigger.fired(), 2);
}

#[tokio::test]
async fn a_connection_is_carried_to_its_end_when_the_server_goes() {
    let proxy = echo().await;
    let stream = eventually(|| TcpStream::connect(proxy.address())).await;
    drop(proxy);
    let mut stream = stream;
    let read = timeout(SOON, stream.read(&mut [0; 1])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
}
