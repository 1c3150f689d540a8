//! What every driver reads from a row, and the rows of `stock`.

use std::error::Error;

use stocklock_core::stock::StockLevel;

/// Declares a struct that every driver can read from a row. A field is the column of its name. `as`: the
/// column has this type, and is converted.
///
/// `struct Row(Value) { … }` has a value of the domain, and lists its fields. `= |columns| value`: the field is
/// computed from these columns.
macro_rules! rows {
    ($(#[$note:meta])* $scope:vis struct $Row:ident {
        $($(#[$about:meta])* $field:ident: $Type:ty $(as $Column:ty)?,)*
    }) => {
        $(#[$note])* $scope struct $Row {
            $($(#[$about])* $field: $Type,)*
        }
        rows!(@all $Row, std::convert::identity, $Row, $($field $(as $Column)?,)*);
    };
    ($(#[$note:meta])* $scope:vis struct $Row:ident($Value:ident) { $($fields:tt)* }) => {
        $(#[$note])* $scope struct $Row($scope $Value);
        rows!(@all $Row, $Row, $Value, $($fields)*);
    };
    (@all $($read:tt)*) => {
        rows!(@read sqlx::sqlite::SqliteRow, $($read)*);
        rows!(@read sqlx::mysql::MySqlRow, $($read)*);
        rows!(@read sqlx::postgres::PgRow, $($read)*);
    };
    (@read $Driver:ty, $Row:ident, $made:path, $Value:ident, $(
        $field:ident $(as $Column:ty)? $(= |$($column:ident: $From:ty),+| $value:expr)?,
    )*) => {
        impl sqlx::FromRow<'_, $Driver> for $Row {
            fn from_row(row: &$Driver) -> sqlx::Result<Self> {
                Ok($made($Value {
                    $($field: rows!(@field row, $field $(as $Column)? $(= |$($column: $From),+| $value)?),)*
                }))
            }
        }
    };
    (@field $row:ident, $field:ident) => {
        sqlx::Row::try_get($row, stringify!($field))?
    };
    (@field $row:ident, $field:ident as $Column:ty) => {{
        let column: $Column = sqlx::Row::try_get($row, stringify!($field))?;
        $crate::sql::rows::converted(stringify!($field), column)?
    }};
    (@field $row:ident, $field:ident = |$($column:ident: $From:ty),+| $value:expr) => {{
        $(let $column: $From = sqlx::Row::try_get($row, stringify!($column))?;)+
        $value
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
    pub(crate) struct LevelRow(StockLevel) {
        sku as String,
        warehouse as String,
        on_hand,
        held,
        backorder_limit,
        version,
    }
}

/// The levels of rows.
pub(crate) fn levels(rows: Vec<LevelRow>) -> Vec<StockLevel> {
    rows.into_iter().map(|LevelRow(level)| level).collect()
}
