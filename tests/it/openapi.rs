//! The OpenAPI document: complete, true to the served API, and changed only on purpose.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

use regex::Regex;
use reqwest::Method;
use serde_json::{Map, Value, json};
use stocklock::http::document;
use stocklock::stock::{Remark, Warehouse};

use crate::support::app::TestApp;
use crate::support::services::Backend::Sqlite;

/// Every operation: path, method, and its part of the document.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().expect("operations");
        item.iter()
            .map(|(method, it)| (path.as_str(), method.as_str(), it))
    });
    operations.collect()
}

/// The target of a `$ref`, or the value itself.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference} does not exist")),
        None => value,
    }
}

/// Production's. That of the lab differs only in what `lab_adds_only_its_routes_and_parameters` names.
#[test]
fn document_matches_its_snapshot() {
    let mut document = document(false);
    document["info"]["version"] = "[version]".into();
    // The letters of all scripts are long, and increase with each version of Unicode.
    let class = Regex::new(r"\[\.0-9[^\]]*-\]").expect("an expression");
    let text = document.to_string();
    let document = class.replace_all(&text, "[letters]");
    let document: Value = serde_json::from_str(&document).expect("it is JSON");
    insta::assert_json_snapshot!("production", document);
}

#[test]
fn every_operation_documents_its_successes_and_errors() {
    let document = document(true);
    let version = document["openapi"].as_str().expect("a version");
    assert!(version.starts_with("3.1."), "{version}");
    let mut names = BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let what = format!("{method} {path}");
        assert!(operation["summary"].is_string(), "{what} has no summary");
        let name = operation["operationId"].as_str().expect("a name");
        assert!(names.insert(name), "{what}: another operation is {name}");
        let responses = operation["responses"].as_object().expect("responses");
        assert!(responses.keys().any(|it| it.starts_with('2')), "{what}");
        for (status, response) in responses {
            let response = resolved(&document, response);
            let description = response["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{what} {status}");
            if status.as_str() < "400" {
                continue;
            }
            let body = &response["content"]["application/problem+json"];
            let code = &resolved(&document, &body["schema"])["properties"]["code"];
            assert!(code.is_object(), "{what} {status}: {response}");
            assert!(description.contains('`'), "{what} {status} names no code");
        }
    }
}

/// Codes of requests that match no operation, and of defects.
const OF_NO_OPERATION: [&str; 5] = [
    "error",
    "internal",
    "method-not-allowed",
    "no-such-route",
    "not-found",
];

/// Every error code in the sources: those of the domain, and those that only HTTP has.
fn codes() -> BTreeSet<String> {
    let of_domain = Regex::new(r#"=> "([a-z-]+)""#).expect("an expression");
    let of_http = r#"::(?:new\(\s*StatusCode::[A-Z_]+,|unprocessable\()\s*"([a-z-]+)""#;
    let of_http = Regex::new(of_http).expect("an expression");
    let of_status = Regex::new(r#"=> \(\s*"([a-z-]+)""#).expect("an expression");
    let created = Regex::new(r"ApiError::(?:new|unprocessable)\(").expect("an expression");
    let mut codes = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut unread = ["src/http", "crates/core/src/stock"]
        .map(|it| root.join(it))
        .to_vec();
    while let Some(path) = unread.pop() {
        if path.is_dir() {
            let entries = path.read_dir().expect("a directory");
            unread.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = read_to_string(&path).expect("a source");
        let expressions = if path.ends_with("stock/error.rs") {
            vec![&of_domain]
        } else if path.ends_with("http/error.rs") {
            vec![&of_http, &of_status]
        } else {
            vec![&of_http]
        };
        let mut literals = 0;
        for expression in expressions {
            for found in expression.captures_iter(&text) {
                codes.insert(found[1].to_owned());
                literals += 1;
            }
        }
        let errors = created.find_iter(&text).count();
        assert!(
            literals >= errors,
            "{}: a code is not a literal",
            path.display()
        );
    }
    codes
}

#[test]
fn every_error_code_is_documented() {
    let document = [document(true), document(false)]
        .map(|it| it.to_string())
        .concat();
    let codes = codes();
    for code in OF_NO_OPERATION {
        assert!(codes.contains(code), "{code} is not a code any more");
    }
    for code in &codes {
        let is_documented = document.contains(&format!("`{code}`"));
        assert_eq!(is_documented, !OF_NO_OPERATION.contains(&&**code), "{code}");
    }
}

/// Character by character, and in short texts.
#[test]
fn patterns_match_what_the_parsers_accept() {
    let document = document(true);
    let schemas = &document["components"]["schemas"];
    let pattern = |schema: &Value| schema["pattern"].as_str().expect("a pattern").to_owned();
    let remark = pattern(&schemas["AdjustBody"]["properties"]["reason"]);
    let (sku, warehouse) = (pattern(&schemas["Sku"]), pattern(&schemas["Warehouse"]));
    // The crate `regex` has no look-ahead. Python has no properties.
    let name = warehouse.strip_prefix(r"^(?!(\.+)$)");
    let name = name.expect("it refuses dots alone");
    assert_eq!(sku, format!(r"^(?!(deduct|\.+)$){name}"));
    assert!(!document.to_string().contains(r"\p"), "not for Python");
    let [name, remark] = [format!("^{name}"), remark].map(|it| Regex::new(&it).expect("a pattern"));
    let texts = [
        "..",
        ".a.",
        "...-",
        "a b",
        "a/b",
        "",
        "\u{e9}-4.5_b",
        "a\nb",
        "a\n",
    ];
    let chars = ('\0'..=char::MAX).map(String::from);
    for text in chars.chain(texts.map(str::to_owned)) {
        let is_name = Warehouse::parse(text.as_str()).is_ok();
        let is_dots = !text.is_empty() && text.chars().all(|c| c == '.');
        assert_eq!(name.is_match(&text) && !is_dots, is_name, "{text:?}");
        let is_remark = Remark::parse("reason", text.as_str()).is_ok();
        assert_eq!(remark.is_match(&text), is_remark, "{text:?}");
    }
}

#[tokio::test]
async fn every_documented_route_is_served() {
    // Servers that it does not ask.
    let flags = [
        "--redis-url=redis://127.0.0.1:1",
        "--redlock-urls=redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3",
        "--zookeeper-connect=127.0.0.1:1",
    ];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    app.set_level("a", 1).await;
    let document = app.get_json("/openapi.json").await;
    assert_eq!(document, stocklock::http::document(true));
    for (path, method, _) in operations(&document) {
        let method: Method = method.to_uppercase().parse().expect("a method");
        let request = app.request(
            0,
            method.clone(),
            &path.replace("{sku}", "a").replace("{file}", "app.js"),
        );
        let answer = request.send().await.expect("an answer").text().await;
        let answer = answer.expect("a body");
        for absent in ["no-such-route", "method-not-allowed", "internal"] {
            assert!(!answer.contains(absent), "{method} {path}: {answer}");
        }
    }
}

#[tokio::test]
async fn served_document_has_only_strategies_that_can_be_used() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    let document = app.get_json("/openapi.json").await;
    let parameters = &document["paths"]["/stock/deduct"]["post"]["parameters"];
    let mut parameters = parameters.as_array().expect("parameters").iter();
    let strategy = parameters.find(|it| it["name"] == "strategy");
    let names = &strategy.expect("a parameter")["schema"]["enum"];
    let names: Vec<_> = names.as_array().expect("names").iter().collect();
    let has_default = names.iter().any(|name| **name == "group-commit");
    assert!(has_default, "{names:?}");
    assert!(!names.iter().any(|name| **name == "redis-lua"), "{names:?}");
}

/// The part of every operation.
fn operations_mut(document: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let paths = document["paths"].as_object_mut().expect("paths");
    let operations = paths.values_mut().filter_map(Value::as_object_mut);
    operations.flat_map(|operations| operations.values_mut().filter_map(Value::as_object_mut))
}

/// Production has keys and deployments that divide the SKUs; all else is the same.
#[test]
fn lab_adds_only_its_routes_and_parameters() {
    let (mut lab, mut production) = (document(true), document(false));
    let paths = lab["paths"].as_object_mut().expect("paths");
    paths.remove("/").expect("the lab has a page");
    paths.retain(|path, _| !path.starts_with("/lab/"));
    let schemas = lab["components"]["schemas"].as_object_mut();
    let schemas = schemas.expect("schemas");
    schemas.retain(|name, _| production["components"]["schemas"].get(name).is_some());
    let only_in_the_lab = ["strategy", "guard", "check"].map(Value::from);
    for (path, count) in [("/stock/deduct", 3), ("/stock/deduct/batch", 1)] {
        let parameters = &mut lab["paths"][path]["post"]["parameters"];
        let parameters = parameters.as_array_mut().expect("parameters");
        let before = parameters.len();
        parameters.retain(|it| !only_in_the_lab.contains(&it["name"]));
        assert_eq!(parameters.len(), before - count);
    }
    for operation in operations_mut(&mut lab) {
        operation.entry("parameters").or_insert(json!([]));
    }

    let reference = |part: &str| Some(json!({"$ref": format!("#/components/{part}")}));
    for operation in operations_mut(&mut production) {
        let needs_key = operation.remove("security").is_some();
        let parameters = operation["parameters"].as_array_mut().and_then(Vec::pop);
        assert_eq!(parameters, reference("parameters/Sku"));
        let responses = operation["responses"].as_object_mut().expect("responses");
        assert_eq!(responses.remove("421"), reference("responses/WrongShard"));
        if needs_key {
            for (status, name) in [
                ("401", "Unauthorized"),
                ("403", "Forbidden"),
                ("429", "TooMany"),
            ] {
                let expected = reference(&format!("responses/{name}"));
                assert_eq!(responses.remove(status), expected);
            }
            if responses.get("503") == reference("responses/NoKeysYet").as_ref() {
                responses.remove("503");
            }
        }
        // The lab also refuses reads with the name of another site.
        responses.insert("403".to_owned(), json!(reference("responses/Foreign")));
    }
    let components = production["components"].as_object_mut();
    let components = components.expect("components");
    for part in ["parameters", "securitySchemes"] {
        let part = components.remove(part).expect("production has it");
        assert_eq!(part.as_object().map(Map::len), Some(1), "{part}");
    }
    let responses = components["responses"].as_object_mut();
    responses
        .and_then(|them| them.remove("WrongShard"))
        .expect("production has it");
    let body = components["schemas"]["DeductBody"]["oneOf"][0].as_object_mut();
    let required = body.and_then(|body| body.remove("required"));
    assert_eq!(required, Some(json!(["sku"])));
    assert_eq!(lab, production);
}

#[tokio::test]
async fn swagger_page_loads_nothing_from_other_hosts() {
    let app = TestApp::with_flags(Sqlite, 1, &[]).await;
    let page = app.get("/docs/").await;
    let quoted: Vec<_> = page.text().split('"').collect();
    let sources = quoted
        .windows(2)
        .filter(|it| it[0].ends_with("src=") || it[0].ends_with("href="))
        .map(|it| it[1]);
    let mut count = 0;
    for source in sources {
        assert!(!source.contains("//"), "{source} is on another host");
        let path = format!("/docs/{}", source.trim_start_matches("./"));
        app.get(&path).await.ok();
        count += 1;
    }
    assert!(count >= 3, "{page:?}");
}
