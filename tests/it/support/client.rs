//! The HTTP clients of the tests. They fail if an answer hangs.

use std::time::Duration;

use reqwest::{Client, ClientBuilder};

/// The longest time in which no byte of an answer arrives. Far more than any request needs.
const HANG: Duration = Duration::from_mins(5);

/// A client that keeps its connections open. It repeats no request by itself, which would hide a broken
/// connection.
pub(crate) fn client() -> Client {
    built(Client::builder().retry(reqwest::retry::never()))
}

/// With a time limit for each read, which ends a hang.
pub(crate) fn built(client: ClientBuilder) -> Client {
    let client = client.no_proxy().read_timeout(HANG).build();
    client.expect("a client without TLS can be built")
}
