//! Somebody else's transaction on the service's database: it holds what it touched until it ends.

use sqlx::{Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};

use super::services::Backend;

/// An open transaction, rolled back at its end.
pub(crate) enum Rival {
    Sqlite(SqliteConnection),
    Mysql(MySqlConnection),
    Postgres(PgConnection),
}

impl Rival {
    /// Opens a transaction and carries `statement` out in it.
    pub(crate) async fn holding(backend: Backend, url: &str, statement: &'static str) -> Self {
        let mut rival = match backend {
            Backend::Sqlite => SqliteConnection::connect(url).await.map(Self::Sqlite),
            Backend::Mysql => MySqlConnection::connect(url).await.map(Self::Mysql),
            Backend::Postgres => PgConnection::connect(url).await.map(Self::Postgres),
        }
        .expect("the database lets a test in");
        rival.execute("BEGIN").await;
        rival.execute(statement).await;
        rival
    }

    /// Locks every row of stock; on SQLite, which knows no less, the database.
    pub(crate) async fn holding_stock(backend: Backend, url: &str) -> Self {
        Self::holding(backend, url, "UPDATE stock SET held = held").await
    }

    /// Lets go of what it holds.
    pub(crate) async fn let_go(mut self) {
        self.execute("ROLLBACK").await;
    }

    async fn execute(&mut self, statement: &'static str) {
        let statement = sqlx::raw_sql(statement);
        match self {
            Self::Sqlite(connection) => connection.execute(statement).await.map(drop),
            Self::Mysql(connection) => connection.execute(statement).await.map(drop),
            Self::Postgres(connection) => connection.execute(statement).await.map(drop),
        }
        .expect("the database does as it is told");
    }
}
