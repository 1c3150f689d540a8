//! `stocklock ping`: whether the replica on this machine is ready, for health checks of an image without a
//! shell.

use std::time::Duration;

use http_body_util::Full;
use hyper::{Request, StatusCode, header};

use super::Failure;
use crate::client::send;
use crate::config::Addresses;

/// Longer than `/readyz` waits for the servers.
const LIMIT: Duration = Duration::from_secs(2);

/// Asks `/readyz`. Fails with its answer if the replica is not ready.
pub(super) async fn ping(addresses: &Addresses) -> Result<(), Failure> {
    let address = addresses.probes().to_string();
    let request = Request::get("/readyz").header(header::HOST, &address);
    let request = request.body(Full::default()).expect("a valid request");
    let failed = |problem| Failure::Other(format!("{address}: {problem}"));
    let answer = send(&address, request, LIMIT).await.map_err(failed)?;
    match answer.status() {
        StatusCode::OK => Ok(()),
        status => {
            let body = String::from_utf8_lossy(answer.body());
            Err(failed(format!("{status}: {body}")))
        }
    }
}
