//! The lab's stock: two SKUs, one in SQL and one in Redis.

use super::Replica;
use crate::http::Lab;
use stocklock_core::stock::{
    Home, LevelChange, OperationId, Precondition, Remark, Sku, StockError, Warehouse,
};

/// The default SKU of the lab.
const LAB_SKU: &str = "1001";

/// The default SKU for strategies that work on Redis only.
const LAB_REDIS_SKU: &str = "1001-redis";

/// Units of each.
const LAB_STOCK: i64 = 5_000;

/// The SKUs that a request in the lab means if it names none.
pub(super) fn lab() -> Lab {
    Lab {
        default_sku: sku(LAB_SKU),
        default_redis_sku: sku(LAB_REDIS_SKU),
    }
}

impl Replica {
    /// Creates the lab's SKUs unless they exist.
    ///
    /// # Errors
    /// The reason why a level could not be set.
    pub async fn seed_lab(&self) -> Result<(), StockError> {
        self.seed(LAB_SKU, Home::Sql).await?;
        if self.stores.have_redis() {
            self.seed(LAB_REDIS_SKU, Home::Redis).await?;
        }
        Ok(())
    }

    async fn seed(&self, name: &str, home: Home) -> Result<(), StockError> {
        let change = LevelChange {
            operation: OperationId::mint(),
            sku: sku(name),
            warehouse: Warehouse::default(),
            on_hand: LAB_STOCK,
            backorder_limit: None,
            home: Some(home),
            reason: Remark::parse("reason", "seeded by the lab").ok(),
            precondition: Some(Precondition::Absent),
        };
        match self.api.levels.set_level(change).await {
            Ok(_) | Err(StockError::PreconditionFailed) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("the lab's SKUs are valid")
}
