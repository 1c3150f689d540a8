//! What every driver reads from a row, and the rows of `stock`.

use std::error::Error;

use stocklock_core::stock::{Sku, StockLevel, Warehouse};

/// Declares structs that every driver can read from a row. A field is the column of its name. `as`: the
/// column has this type, and is converted.
macro_rules! rows {
    ($($(#[$note:meta])* $scope:vis struct $Row:ident { $($fields:tt)* })+) => {
        $(
            rows!(@declare [$(#[$note])* $scope struct $Row] $($fields)*);
            rows!(@read sqlx::sqlite::SqliteRow, $Row, $($fields)*);
            rows!(@read sqlx::mysql::MySqlRow, $Row, $($fields)*);
            rows!(@read sqlx::postgres::PgRow, $Row, $($fields)*);
        )+
    };
    (@declare [$($head:tt)*] $(
        $(#[$note:meta])* $scope:vis $field:ident: $Type:ty $(as $Column:ty)?,
    )*) => {
        $($head)* {
            $($(#[$note])* $scope $field: $Type,)*
        }
    };
    (@read $Driver:ty, $Row:ident, $(
        $(#[$note:meta])* $scope:vis $field:ident: $Type:ty $(as $Column:ty)?,
    )*) => {
        impl sqlx::FromRow<'_, $Driver> for $Row {
            fn from_row(row: &$Driver) -> sqlx::Result<Self> {
                Ok(Self {
                    $($field: rows!(@field row, $field, $($Column)?),)*
                })
            }
        }
    };
    (@field $row:ident, $field:ident, ) => {
        sqlx::Row::try_get($row, stringify!($field))?
    };
    (@field $row:ident, $field:ident, $Column:ty) => {{
        let column: $Column = sqlx::Row::try_get($row, stringify!($field))?;
        $crate::sql::rows::converted(stringify!($field), column)?
    }};
}
pub(crate) use rows;

/// The value of a column as the type of its field.
pub(crate) fn converted<C, T>(name: &str, column: C) -> sqlx::Result<T>
where
    T: TryFrom<C, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    T::try_from(column).map_err(|error| sqlx::Error::ColumnDecode {
        index: name.to_owned(),
        source: error.into(),
    })
}

rows! {
    /// A row of `stock`.
    #[derive(Debug)]
    pub(crate) struct LevelRow {
        sku: Sku as String,
        warehouse: Warehouse as String,
        on_hand: i64,
        held: i64,
        backorder_limit: i64,
        version: i64,
    }
}

/// The levels of rows.
pub(crate) fn levels(rows: Vec<LevelRow>) -> Vec<StockLevel> {
    let level = |row: LevelRow| StockLevel {
        sku: row.sku,
        warehouse: row.warehouse,
        on_hand: row.on_hand,
        held: row.held,
        backorder_limit: row.backorder_limit,
        version: row.version,
    };
    rows.into_iter().map(level).collect()
}
