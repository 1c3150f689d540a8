//! The program as a process: paused in the middle of what it does, and killed.

use reqwest::Method;

use super::{SOON, is_silent};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::services::{Backend, fresh_database};

#[tokio::test]
async fn a_process_that_is_stopped_does_nothing_until_it_is_resumed() {
    let database = fresh_database(Backend::Postgres).await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let process = Process::lab(&url, &[]).await;
    process.set_level("sku-of-this-test", 1).await;

    let hold = proxy.hold_answer(b"sku-of-this-test");
    let request = process.request(Method::GET, "/stock/sku-of-this-test");
    let mut answer = tokio::spawn(request.send());
    hold.held().await;
    process.stop().await;
    hold.let_go();
    is_silent(&mut answer).await;
    process.resume();
    let answer = tokio::time::timeout(SOON, answer).await;
    let answer = answer.expect("it goes on").unwrap().unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_process_that_is_killed_is_gone_even_if_it_was_stopped() {
    let database = fresh_database(Backend::Sqlite).await;
    let mut process = Process::lab(&database.url, &[]).await;
    process.stop().await;
    assert!(process.is_running());
    process.kill9();
    assert!(!process.is_running());
    let refused = process.request(Method::GET, "/healthz").send().await;
    assert!(refused.unwrap_err().is_connect());
    // By a signal: there was no time for a code, nor for a word.
    assert_eq!(process.ended().await.code, None);
}
