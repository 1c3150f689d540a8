//! Requests that were sent to the wrong deployment, if several divide the SKUs.
//!
//! The core checks changes. This file checks the header by which the proxy finds the deployment. Routes that read
//! check the SKUs that they name.

use axum::extract::Request;
use axum::http::{HeaderName, StatusCode};

use serde_json::{Value, json};

use super::{Api, ApiError};
use stocklock_core::stock::{Shard, Sku, StockError};

/// The SKU that the request is about, for the proxy.
const X_SKU: HeaderName = HeaderName::from_static("x-sku");

impl Api {
    /// The SKUs that this deployment has.
    pub(super) fn shard(&self) -> Shard {
        self.config.service.shard
    }

    /// Refuses SKUs that this deployment does not have.
    pub(super) fn check_shard<'a>(
        &self,
        skus: impl IntoIterator<Item = &'a Sku>,
    ) -> Result<(), ApiError> {
        let checked = self.shard().check(skus);
        checked.map_err(|wrong| StockError::from(wrong).into())
    }
}

/// Refuses a request whose `X-Sku` belongs to another shard, and one about an operation without that header: an
/// operation is looked up in one database, and missing there says nothing.
pub(super) fn check(shard: Shard, request: &Request) -> Result<(), ApiError> {
    if !shard.is_part() {
        return Ok(());
    }
    let sent = request.headers().get_all(X_SKU).iter();
    let mut sent = sent.filter(|sku| !sku.is_empty()).peekable();
    let path = request.uri().path();
    let detail = if sent.peek().is_none() && path.starts_with("/operations") {
        format!(
            "this is shard {shard}: send the header X-Sku with a SKU of the operation, so that the proxy finds its shard"
        )
    } else {
        let Some(sku) = sent.find(|sku| !shard.owns(sku.as_bytes())) else {
            return Ok(());
        };
        let (owner, sku) = (
            shard.owner(sku.as_bytes()),
            String::from_utf8_lossy(sku.as_bytes()),
        );
        format!(
            "this is shard {shard}, and X-Sku names {sku}, which is of shard {owner}: send the request there"
        )
    };
    let wrong = ApiError::new(StatusCode::MISDIRECTED_REQUEST, "wrong-shard", detail);
    Err(wrong)
}

/// Adds the header and the refusal to the document of each route. The lab has neither, because it has all SKUs.
pub(super) fn describe(document: &mut Value) {
    let components = &mut document["components"];
    components["parameters"] = json!({"Sku": {
        "name": "X-Sku", "in": "header", "schema": {"type": "string"},
        "description": "A SKU of the request, in UTF-8. A proxy in front of several deployments finds the one that \
            has it. Without such a proxy the header is ignored."
    }});
    components["responses"]["WrongShard"] = json!({
        "description": "`wrong-shard`: several deployments divide the SKUs, and another one has those of the \
            request; or a request about an operation has no X-Sku",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    });
    let paths = document["paths"].as_object_mut().expect("paths");
    let operations = paths.values_mut().filter_map(Value::as_object_mut);
    for (_, operation) in operations.flatten() {
        operation["responses"]["421"] = json!({"$ref": "#/components/responses/WrongShard"});
        let sku = json!({"$ref": "#/components/parameters/Sku"});
        match operation
            .get_mut("parameters")
            .and_then(Value::as_array_mut)
        {
            Some(parameters) => parameters.push(sku),
            None => operation["parameters"] = json!([sku]),
        }
    }
}
