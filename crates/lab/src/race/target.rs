//! A replica on which a race runs, given by its base URL.
//!
//! Only plain HTTP: a race runs next to the service, and TLS would distort the measurement.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use url::Url;

/// The base URL of a replica in lab mode, such as `http://127.0.0.1:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(Url);

impl Target {
    /// Host and port to connect to.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = self.0.host_str().expect("an HTTP URL has a host");
        // A URL needs brackets around an IPv6 address, a socket address must not have them.
        (host.trim_matches(['[', ']']), self.0.port().unwrap_or(80))
    }

    /// A request for a path (and query) of the service, which must be escaped already. The body is
    /// JSON, or empty.
    pub(super) fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let base = self.0.path().trim_end_matches('/');
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(HOST, self.0.authority());
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body));
        request.expect("the parts of a URL are valid in a request")
    }
}

impl FromStr for Target {
    /// What is wrong with the URL.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |problem| Err(format!("`{text}` is not a valid target: {problem}"));
        match text.parse::<Url>() {
            Err(_) => invalid("not a URL"),
            Ok(url) if url.scheme() != "http" => invalid("it must begin with `http://`"),
            Ok(url) if url.query().or(url.fragment()).is_some() => {
                invalid("it must not have a query")
            }
            Ok(url) if url.authority().contains('@') => invalid("it must not have a user name"),
            Ok(url) => Ok(Self(url)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_is_split_into_its_parts() {
        for (text, address, host, uri) in [
            ("http://[::1]:80/a/", ("::1", 80), "[::1]", "/a/b?c=d"),
            ("http://b:81", ("b", 81), "b:81", "/b?c=d"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.address(), address);
            let request = target.request(Method::GET, "/b?c=d", Bytes::new());
            assert_eq!(request.headers()[HOST], host);
            assert_eq!(*request.uri(), uri);
        }
        let target: Target = "http://localhost:8080/shop/".parse().unwrap();
        assert_eq!(target.to_string(), "http://localhost:8080/shop");
    }

    #[test]
    fn other_texts_are_refused() {
        let texts = ["", "a:80", "https://a", "/path", "http://a?b", "http://a@b"];
        for text in texts {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
    }
}
