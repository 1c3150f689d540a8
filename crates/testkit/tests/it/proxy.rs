//! The proxy's modes, and its triggers that cut.

use std::io;

use stocklock_testkit::proxy::{Mode, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{is_silent, soon};

/// A proxy in front of a server that sends every byte back.
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

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn send_and_receive(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    let mut answer = vec![0; text.len()];
    stream.write_all(text).await?;
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, text);
    Ok(())
}

#[tokio::test]
async fn refusing_proxy_cuts_old_and_refuses_new_connections() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    send_and_receive(&mut stream, b"there").await.unwrap();

    proxy.set(Mode::Refuse).await;
    send_and_receive(&mut stream, b"cut").await.unwrap_err();
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    proxy.set(Mode::Pass).await;
    let mut stream = connect(&proxy).await;
    send_and_receive(&mut stream, b"back").await.unwrap();
}

#[tokio::test]
async fn blackhole_is_silent_and_delivers_after_its_end() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    send_and_receive(&mut stream, b"there").await.unwrap();

    proxy.set(Mode::Blackhole).await;
    stream.write_all(b"late").await.unwrap();
    let mut answer = [0; 4];
    is_silent(&mut Box::pin(stream.read_exact(&mut answer))).await;
    proxy.set(Mode::Pass).await;
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"late");
}

#[tokio::test]
async fn stranded_connection_stays_silent_and_a_new_one_passes() {
    let proxy = echo().await;
    let mut stranded = connect(&proxy).await;
    send_and_receive(&mut stranded, b"there").await.unwrap();

    proxy.set(Mode::Strand).await;
    let mut new = connect(&proxy).await;
    send_and_receive(&mut new, b"there").await.unwrap();
    proxy.set(Mode::Pass).await;
    stranded.write_all(b"lost").await.unwrap();
    is_silent(&mut Box::pin(stranded.read(&mut [0; 4]))).await;
}

#[tokio::test]
async fn pattern_is_found_across_reads_and_only_while_armed() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    // Sent before the trigger is armed.
    send_and_receive(&mut stream, b"STOP").await.unwrap();
    let trigger = proxy.cut_before(b"STOP", 2);
    send_and_receive(&mut stream, b"...ST").await.unwrap();
    send_and_receive(&mut stream, b"OP").await.unwrap_err();
    assert_eq!(trigger.fired(), 1);

    let mut stream = connect(&proxy).await;
    send_and_receive(&mut stream, b"STOP").await.unwrap_err();
    let mut stream = connect(&proxy).await;
    send_and_receive(&mut stream, b"STOP").await.unwrap();
    assert_eq!(trigger.fired(), 2);
}

#[tokio::test]
async fn dropped_proxy_closes_its_connections() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    drop(proxy);
    let read = soon(stream.read(&mut [0; 1])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}
