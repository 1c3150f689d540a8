//! A replica on which a race runs, given by its base URL.
//!
//! Only plain HTTP: a race runs next to the service, and TLS would distort the measurement.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::HeaderValue;
use serde::{Serialize, Serializer};

/// The text is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid target: {problem}")]
pub struct InvalidTarget {
    text: String,
    problem: &'static str,
}

/// The base URL of a replica in lab mode, such as `http://127.0.0.1:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
    url: String,
}

impl Target {
    /// Host and port to connect to.
    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The `Host` header.
    pub(super) fn authority(&self) -> HeaderValue {
        self.authority.clone()
    }

    /// The request target for a path (and query) of the service, which must be escaped already.
    pub(super) fn uri(&self, path: &str) -> Uri {
        Uri::try_from(format!("{}{path}", self.path)).expect("both paths are valid")
    }
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let invalid = |problem| InvalidTarget {
            text: text.to_owned(),
            problem,
        };
        let url = text.trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|_| invalid("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("it must begin with `http://`"));
        }
        if uri.query().is_some() {
            return Err(invalid("it must not have a query"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it must not have a user name"));
        }
        Ok(Self {
            // A URL needs brackets around an IPv6 address, a socket address must not have them.
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| invalid("its host is not a valid header value"))?,
            path: uri.path().trim_end_matches('/').to_owned(),
            url: url.to_owned(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_is_split_into_its_parts() {
        let target: Target = "http://[::1]:8080/shop/".parse().unwrap();
        assert_eq!(target.address(), ("::1", 8080));
        assert_eq!(target.authority(), "[::1]:8080");
        assert_eq!(target.uri("/stock/a?b=c"), "/shop/stock/a?b=c");
        assert_eq!(target.to_string(), "http://[::1]:8080/shop");
        let plain: Target = "http://localhost".parse().unwrap();
        assert_eq!(plain.address(), ("localhost", 80));
        assert_eq!(plain.uri("/strategies"), "/strategies");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "localhost:8080",
            "https://a",
            "/path",
            "http://a?b",
            "http://a@b",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
    }
}
