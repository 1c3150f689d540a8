//! The schemas of the fields of requests, so that the document says exactly what is accepted.
//!
//! utoipa derives names and descriptions. The limits come from the value types.

use serde_json::{Value, json};

use super::deduct_batch::MAX_LINES;
use super::paging::PageSize;
use stocklock_core::stock::{
    IdempotencyKey, MAX_NAME_CHARS, MAX_UNITS, NAME_PATTERN, Quantity, Remark,
};
use stocklock_core::strategy::Strategy;

/// The bodies of requests.
const BODIES: [&str; 6] = [
    "DeductBody",
    "BatchBody",
    "BatchLine",
    "LevelOrder",
    "AdjustBody",
    "ReverseBody",
];

/// A list of entity tags.
const TAGS: &str = r#"^(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*$"#;

/// Gives every parameter and every field of a body its schema.
pub(super) fn complete(document: &mut Value) {
    let paths = document["paths"].as_object_mut().expect("paths");
    for (path, operations) in paths {
        for (method, operation) in operations.as_object_mut().expect("operations") {
            let place = format!("{method} {path}");
            let parameters = operation
                .get_mut("parameters")
                .and_then(Value::as_array_mut);
            let parameters = parameters.into_iter().flat_map(|list| {
                // The extractor `Path<String>` adds the SKU again, without a description.
                list.retain(|parameter| parameter.get("description").is_some());
                list
            });
            for parameter in parameters {
                let name = parameter["name"].as_str().expect("a name").to_owned();
                parameter["schema"] = schema(&place, &name);
            }
        }
    }
    for body in BODIES {
        let fields = &mut document["components"]["schemas"][body]["properties"];
        for (name, field) in fields.as_object_mut().expect("fields") {
            let derived = field.take();
            *field = schema(body, name);
            for kept in ["description", "example"] {
                if let Some(text) = derived.get(kept) {
                    field[kept] = text.clone();
                }
            }
        }
    }
}

/// What is accepted in a field. `place` is the method and the path of the request, or the name of
/// its body.
fn schema(place: &str, field: &str) -> Value {
    match field {
        "sku" => {
            let mut name = text(MAX_NAME_CHARS, NAME_PATTERN);
            // A route.
            name["not"] = json!({"const": "deduct"});
            name
        }
        "warehouse" => text(MAX_NAME_CHARS, NAME_PATTERN),
        "reason" | "reference" => text(Remark::MAX_CHARS, Remark::PATTERN),
        "Idempotency-Key" | "key" => text(IdempotencyKey::MAX_CHARS, IdempotencyKey::PATTERN),
        "If-Match" => json!({"type": "string", "anyOf": [{"const": "*"}, {"pattern": TAGS}]}),
        // Malformed tags are ignored.
        "If-None-Match" if place == "get /stock/{sku}" => json!({"type": "string"}),
        "If-None-Match" => one_of(&["*"]),
        "quantity" => whole(1, Quantity::MAX.units()),
        "limit" => whole(1, PageSize::MAX.into()),
        "on_hand" => whole(-MAX_UNITS, MAX_UNITS),
        "backorder_limit" => whole(0, MAX_UNITS),
        "delta" => {
            let mut units = whole(-MAX_UNITS, MAX_UNITS);
            units["not"] = json!({"const": 0});
            units
        }
        "kind" => one_of(&["received", "deducted", "adjusted", "returned"]),
        "strategy" => one_of(&Strategy::names()),
        "guard" | "check" => one_of(&["on", "off"]),
        "cursor" if place == "get /operations" => json!({"type": "string", "format": "uuid"}),
        "cursor" => {
            let name = r"[\p{Alphabetic}\p{N}._-]{1,64}";
            let pattern = if place == "get /stock" {
                format!(r"^(?!\.+/){name}/(?!\.+$){name}$")
            } else {
                format!(r"^v1(;(?!\.+:){name}:[0-9]{{1,18}})+$")
            };
            json!({"type": "string", "pattern": pattern})
        }
        "holder" => json!({"type": "string", "pattern": "^[0-9a-f]{32}$"}),
        "id" => json!({"type": "string", "format": "uuid"}),
        "file" => json!({"type": "string"}),
        "format" => one_of(&["html", "json"]),
        "since" | "Last-Event-ID" => whole(0, i64::MAX),
        "restock" | "cached" => json!({"type": "boolean"}),
        "lines" => {
            let line = json!({"$ref": "#/components/schemas/BatchLine"});
            json!({"type": "array", "items": line, "minItems": 1, "maxItems": MAX_LINES})
        }
        unknown => unreachable!("{unknown} in {place} has no schema"),
    }
}

fn text(max_chars: usize, pattern: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": max_chars, "pattern": pattern})
}

fn whole(minimum: i64, maximum: i64) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": minimum, "maximum": maximum})
}

fn one_of(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}
