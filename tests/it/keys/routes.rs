//! Every route of the OpenAPI document with every kind of key.

use std::collections::BTreeMap;

use reqwest::header::AUTHORIZATION;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use stocklock_core::access::Scope;

use super::{Keys, create_level};
use crate::support::app::{TestApp, send};
use crate::support::services::Backend::Sqlite;

/// The operations of the document, and the scope that each needs.
fn operations(document: &Value) -> Vec<(Method, String, Option<Scope>)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let method = method.to_uppercase().parse().expect("a method");
            let scope = operation.get("security").map(|security| {
                let names = security[0]["api_key"].as_array().expect("names");
                let [name] = &names[..] else {
                    panic!("{path}: {names:?}")
                };
                Scope::parse(name.as_str().expect("a name")).expect("a scope")
            });
            operations.push((method, path.clone(), scope));
        }
    }
    operations
}

/// A request that its handler refuses, unless it is a read.
fn request(app: &TestApp, method: &Method, path: &str) -> RequestBuilder {
    let path = path
        .replace("{sku}", "tea")
        .replace("{id}", "01a2031f-c24e-7303-9f02-e3efecfcc3a6");
    let request = app.request(0, method.clone(), &path);
    if method == Method::GET {
        return request;
    }
    request.json(&json!({}))
}

#[tokio::test]
async fn each_route_needs_a_valid_key_with_its_scope() {
    let keys = Keys::new(Sqlite).await;
    let mut with_scope = BTreeMap::new();
    for scope in Scope::ALL {
        with_scope.insert(scope.as_str(), keys.add("shop", &[scope], |_| {}).await);
    }
    let everything = Scope::ALL;
    let expired = keys
        .add("shop", &everything, |key| key.expires_at = Some(2))
        .await;
    let revoked = keys.add("shop", &everything, |_| {}).await;
    keys.revoke(&revoked).await;
    let good = &with_scope["read"];
    let other = &with_scope["sell"];
    // The id of one key, and the secret of another.
    let wrong = good[..21].to_owned() + &other[21..];
    let app = keys.serving(1).await;
    create_level(&app, &with_scope["stock"]).await;
    let document = app.get_json("/openapi.json").await;
    assert_eq!(document, stocklock::http::document(false));
    let operations = operations(&document);
    assert!(operations.len() > 15, "{operations:?}");

    let open = operations.iter().filter(|(_, _, scope)| scope.is_none());
    let open: Vec<_> = open.map(|(_, path, _)| &**path).collect();
    assert_eq!(open, ["/healthz", "/readyz"]);
    for path in open.into_iter().chain(["/docs/", "/openapi.json"]) {
        app.get(path).await.ok();
    }

    let basic = format!("Basic {good}");
    let bearer = |key: &str| format!("Bearer {key}");
    let [wrong, expired, revoked] = [&wrong, &expired, &revoked].map(|key| bearer(key));
    let short = bearer(&good[..good.len() - 1]);
    let refused = [
        "", "Bearer", &short, &basic, good, &wrong, &expired, &revoked,
    ];
    for (method, path, needed) in operations {
        let Some(needed) = needed else { continue };
        for value in refused {
            let mut request = request(&app, &method, &path);
            if !value.is_empty() {
                request = request.header(AUTHORIZATION, value);
            }
            let answer = send(request).await;
            let what = format!("{method} {path} {value}: {answer:?}");
            assert_eq!(answer.status_and_code(), (401, "unauthorized"), "{what}");
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge, r#"Bearer realm="stocklock""#, "{what}");
        }
        let twice = request(&app, &method, &path).bearer_auth(good);
        let twice = send(twice.header(AUTHORIZATION, bearer(other))).await;
        assert_eq!(twice.status, 401, "{method} {path}");
        for (scope, key) in &with_scope {
            let answer = send(request(&app, &method, &path).bearer_auth(key)).await;
            let what = format!("{method} {path} {scope}: {answer:?}");
            if *scope == needed.as_str() {
                assert!(![401, 403, 429, 500].contains(&answer.status), "{what}");
                continue;
            }
            assert_eq!(answer.status_and_code(), (403, "forbidden"), "{what}");
            assert_eq!(answer.body["needs"], needed.as_str(), "{what}");
        }
    }
}
