//! The schemas of the fields of requests, so that the document says exactly what is accepted.
//!
//! utoipa derives names and descriptions. The limits come from the value types.

use serde_json::{Map, Value, json};

use super::order_lines::MAX_WAREHOUSES;
use super::paging::PageSize;
use stocklock_core::stock::{
    IdempotencyKey, MAX_LINE_NUMBER, MAX_LINES, MAX_NAME_CHARS, MAX_UNITS, Quantity, Remark,
};

/// The maximum number of lines of a batch.
pub(super) const MAX_BATCH_LINES: usize = 1_000;

/// The maximum length of the key of an import, so that those of its rows are not too long.
pub(super) const MAX_IMPORT_KEY: usize = 240;

/// The longest time of a hold in seconds: 30 days.
pub(super) const MAX_HOLD_SECONDS: i64 = 2_592_000;

/// The longest time that a request for events waits, in seconds.
pub(super) const MAX_WAIT_SECONDS: u32 = 30;

/// The kinds of movements that requests can name.
const KINDS: [&str; 7] = [
    "received", "deducted", "adjusted", "returned", "held", "released", "expired",
];

/// The maximum length of a webhook's URL in bytes.
pub(super) const MAX_URL: usize = 2_000;

/// The bodies of requests.
const BODIES: [&str; 21] = [
    "WebhookBody",
    "WebhookChangeBody",
    "DeductBody",
    "OrderLine",
    "BatchBody",
    "BatchLine",
    "LevelOrder",
    "AdjustBody",
    "AdjustmentsBody",
    "AdjustmentLine",
    "ReverseBody",
    "ReturnLine",
    "HoldBody",
    "ConfirmBody",
    "ConfirmLine",
    "ReleaseBody",
    "ReleaseLine",
    "ExtendBody",
    "LevelsBody",
    "LevelName",
    "ImportRow",
];

/// Names of fields.
type Names = &'static [&'static str];

/// Those that have either the first fields, of which one is required then, or the second ones; and which are
/// required otherwise. An order in a batch names a SKU.
const EITHER: [(&str, Names, Names, Names); 4] = [
    (
        "DeductBody",
        &["lines"],
        &["sku", "warehouse", "quantity"],
        &[],
    ),
    (
        "BatchLine",
        &["lines"],
        &["sku", "warehouse", "quantity"],
        &["sku"],
    ),
    (
        "ReverseBody",
        &["lines"],
        &["quantity"],
        &["reason", "restock"],
    ),
    (
        "OrderLine",
        &["warehouses", "split"],
        &["warehouse"],
        &["sku"],
    ),
];

/// One character of a name, as a regular expression that lists what it is not. Python has no names of
/// properties such as `\p{L}`, and others have them from another version of Unicode. It is written down
/// because its computation takes longer than the rest of a start.
const NAME_CHAR: &str = include_str!("name_char.txt").trim_ascii_end();

/// A list of entity tags.
const TAGS: &str = r#"^(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*$"#;

/// Gives every parameter and every field of a body its schema. `strategies`: those that can be used.
pub(super) fn complete(document: &mut Value, strategies: &[&str]) {
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
                parameter["schema"] = schema(&place, &name, strategies);
            }
            if place == "get /operations" {
                let parameters = operation["parameters"].as_array_mut().expect("a list");
                join_key_and_reference(parameters);
            }
        }
    }
    let schemas = &mut document["components"]["schemas"];
    schemas["Sku"] = name("deduct|", ", and not `deduct`, which is a route");
    schemas["Warehouse"] = name("", "");
    if let Some(names) = schemas.get_mut("Names") {
        let list = json!({"type": "array", "items": one_of(strategies), "minItems": 1, "uniqueItems": true});
        names["oneOf"] = json!([one_of(&["all"]), list]);
    }
    for body in BODIES {
        let fields = &mut schemas[body]["properties"];
        for (name, field) in fields.as_object_mut().expect("fields") {
            let derived = field.take();
            *field = schema(body, name, strategies);
            for kept in ["description", "example"] {
                if let Some(text) = derived.get(kept) {
                    field[kept] = text.clone();
                }
            }
        }
    }
    for (body, one, other, required) in EITHER {
        either(&mut schemas[body], (one, other), required);
    }
}

/// Makes two schemas of one: with the second fields, of which some are required; and with the first ones instead.
fn either(body: &mut Value, (one, other): (&[&str], &[&str]), required: &[&str]) {
    let (mut flat, mut lines) = (body.clone(), body.clone());
    let properties = |schema: &mut Value, kept: &dyn Fn(&str) -> bool| {
        let properties = schema["properties"].as_object_mut().expect("fields");
        properties.retain(|name, _| kept(name));
    };
    properties(&mut flat, &|name| !one.contains(&name));
    properties(&mut lines, &|name| !other.contains(&name));
    let others = required.iter().filter(|name| !other.contains(name));
    lines["required"] = others.chain(&one[..1]).copied().collect();
    flat["required"] = required.iter().copied().collect();
    let mut both = json!({"oneOf": [flat, lines]});
    for half in both["oneOf"].as_array_mut().expect("a list") {
        let half = half.as_object_mut().expect("a schema");
        half.remove("description");
        if half["required"].as_array().is_some_and(Vec::is_empty) {
            half.remove("required");
        }
    }
    both["description"] = body["description"].take();
    *body = both;
}

/// A list of parameters cannot say that one of two is needed. An object can; its fields stand in the query
/// as before.
fn join_key_and_reference(parameters: &mut Vec<Value>) {
    let mut fields = Map::new();
    parameters.retain(|parameter| {
        let name = parameter["name"].as_str().expect("a name");
        let is_joined = matches!(name, "key" | "reference");
        if is_joined {
            let mut field = parameter["schema"].clone();
            field["description"] = parameter["description"].clone();
            fields.insert(name.to_owned(), field);
        }
        !is_joined
    });
    parameters.push(json!({
        "name": "of",
        "in": "query",
        "description": "Which operations: `key`, `reference` or both, each as a parameter of its own.",
        "required": true,
        "style": "form",
        "explode": true,
        "schema": {
            "type": "object",
            "properties": fields,
            "additionalProperties": false,
            "anyOf": [{"required": ["key"]}, {"required": ["reference"]}],
        },
    }));
}

/// What is accepted in a field. `place` is the method and the path of the request, or the name of
/// its body.
fn schema(place: &str, field: &str, strategies: &[&str]) -> Value {
    match field {
        "sku" => json!({"$ref": "#/components/schemas/Sku"}),
        "warehouse" => json!({"$ref": "#/components/schemas/Warehouse"}),
        "reason" | "reference" => text(Remark::MAX_CHARS, Remark::PATTERN),
        "Idempotency-Key" if place == "post /import" => {
            text(MAX_IMPORT_KEY, IdempotencyKey::PATTERN)
        }
        "Idempotency-Key" | "key" => text(IdempotencyKey::MAX_CHARS, IdempotencyKey::PATTERN),
        "If-Match" => json!({"type": "string", "anyOf": [{"const": "*"}, {"pattern": TAGS}]}),
        // Malformed tags are ignored.
        "If-None-Match" if place == "get /stock/{sku}" => json!({"type": "string"}),
        "If-None-Match" => one_of(&["*"]),
        "quantity" => whole(1, Quantity::MAX.units()),
        "limit" => whole(1, PageSize::MAX.into()),
        "on_hand" => whole(-MAX_UNITS, MAX_UNITS),
        "from" => {
            json!({"type": ["integer", "null"], "minimum": i64::MIN, "maximum": i64::MAX})
        }
        "create" => json!({"const": true}),
        "rows" => one_of(&["all"]),
        "backorder_limit" | "low_at" => whole(0, MAX_UNITS),
        "delta" | "add" => {
            let mut units = whole(-MAX_UNITS, MAX_UNITS);
            units["not"] = json!({"const": 0});
            units
        }
        "kind" => one_of(&KINDS),
        "strategy" => one_of(strategies),
        "guard" | "check" => one_of(&["on", "off"]),
        "expires_in_s" => {
            json!({"type": ["integer", "null"], "minimum": 1, "maximum": MAX_HOLD_SECONDS})
        }
        "cursor" if place == "get /holds" => {
            json!({"type": "string", "pattern": "^v1;([0-9]{1,18}|never);[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12};[0-9]{1,4}$"})
        }
        "cursor" if place == "get /operations" => json!({"type": "string", "format": "uuid"}),
        "after" | "Last-Event-ID" if place == "get /events" => {
            let number = "(0|[1-9][0-9]{0,17})";
            json!({"type": "string", "pattern": format!("^v1;{number}(;{number})?$")})
        }
        "cursor" | "after" => {
            let name = format!("{NAME_CHAR}{{1,{MAX_NAME_CHARS}}}");
            let pattern = if ["get /stock", "get /export"].contains(&place) {
                format!(r"^(?!(deduct|\.+)/){name}/(?!\.+$){name}$")
            } else {
                format!(r"^v1(;(?!\.+:){name}:[0-9]{{1,18}})+$")
            };
            json!({"type": "string", "pattern": pattern})
        }
        "holder" => json!({"type": "string", "pattern": "^[0-9a-f]{32}$"}),
        "id" | "replaces" => json!({"type": "string", "format": "uuid"}),
        "file" => json!({"type": "string"}),
        "format" => one_of(&["html", "json"]),
        "type" => {
            let types = KINDS.map(|kind| format!("stock.{kind}"));
            one_of(&types.each_ref().map(String::as_str))
        }
        "types" => {
            let mut types = KINDS.map(|kind| format!("stock.{kind}")).to_vec();
            types.push("stock.*".to_owned());
            let types: Vec<_> = types.iter().map(String::as_str).collect();
            json!({"type": "array", "items": one_of(&types)})
        }
        "url" => {
            json!({"type": "string", "format": "uri", "maxLength": MAX_URL, "pattern": "^https?://"})
        }
        "wait_s" => whole(0, MAX_WAIT_SECONDS.into()),
        "Last-Event-ID" => whole(0, i64::MAX),
        "warehouses" => {
            let name = json!({"$ref": "#/components/schemas/Warehouse"});
            json!({"type": "array", "items": name, "minItems": 2, "maxItems": MAX_WAREHOUSES, "uniqueItems": true})
        }
        "restock" | "cached" | "late" | "split" | "dry_run" | "enabled" | "rotate_secret" => {
            json!({"type": "boolean"})
        }
        "prefix" => text(MAX_NAME_CHARS, &format!("^{NAME_CHAR}+$")),
        "available_max" => whole(i64::MIN, i64::MAX),
        "levels" => {
            let name = json!({"$ref": "#/components/schemas/LevelName"});
            json!({"type": "array", "items": name, "minItems": 1, "maxItems": MAX_BATCH_LINES})
        }
        "lines" => {
            let (line, most) = match place {
                "BatchBody" => ("BatchLine", MAX_BATCH_LINES),
                "AdjustmentsBody" => ("AdjustmentLine", MAX_LINES),
                "ReverseBody" => ("ReturnLine", MAX_LINES),
                "ConfirmBody" => ("ConfirmLine", MAX_LINES),
                "ReleaseBody" => ("ReleaseLine", MAX_LINES),
                _ => ("OrderLine", MAX_LINES),
            };
            let line = json!({"$ref": format!("#/components/schemas/{line}")});
            json!({"type": "array", "items": line, "minItems": 1, "maxItems": most})
        }
        "line" => whole(0, MAX_LINE_NUMBER),
        unknown => unreachable!("{unknown} in {place} has no schema"),
    }
}

/// A name. It is not one of `reserved`, and not of dots alone, which are steps of a path.
fn name(reserved: &str, exception: &str) -> Value {
    let pattern = format!(r"^(?!({reserved}\.+)$){NAME_CHAR}+$");
    let mut name = text(MAX_NAME_CHARS, &pattern);
    name["description"] = format!(
        "1 to {MAX_NAME_CHARS} letters and marks of any script, digits, `.`, `_`, `-`, in normal \
         form NFC; not only `.`{exception}"
    )
    .into();
    name
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

#[cfg(test)]
mod tests {
    use stocklock_core::stock::is_name_char;

    /// A character in a regular expression. Python and ECMA-262 share an escape of four digits only.
    fn escaped(c: char) -> String {
        u16::try_from(u32::from(c)).map_or_else(|_| c.into(), |code| format!(r"\u{code:04x}"))
    }

    /// If it fails after an update of Unicode's tables, write the computed text into the file.
    #[test]
    fn name_char_is_what_no_name_may_have() {
        let mut chars = ('\0'..=char::MAX).filter(|c| !is_name_char(*c)).peekable();
        let mut class = "[^".to_owned();
        while let Some(first) = chars.next() {
            let mut last = first;
            while let Some(next) = chars.next_if(|next| u32::from(*next) == u32::from(last) + 1) {
                last = next;
            }
            class += &escaped(first);
            if last != first {
                class += "-";
                class += &escaped(last);
            }
        }
        assert_eq!(super::NAME_CHAR, class + "]");
    }
}
