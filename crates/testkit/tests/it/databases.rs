//! SQL servers and databases, and cuts around their `COMMIT`.

use sqlx::{AnyConnection, Connection};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{Backend, PrivateServer, TestDatabase, fresh_database};

use super::soon;

async fn connect(url: &str) -> sqlx::Result<AnyConnection> {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await
}

async fn create_table(url: &str) {
    let mut connection = connect(url).await.unwrap();
    let create = sqlx::query("CREATE TABLE note (id INT PRIMARY KEY)");
    create.execute(&mut connection).await.unwrap();
}

async fn count_notes(url: &str) -> sqlx::Result<i64> {
    let count = sqlx::query_scalar("SELECT COUNT(*) FROM note");
    count.fetch_one(&mut connect(url).await?).await
}

/// Inserts a row in a transaction. Like the stores, it first sends READ COMMITTED, which contains the
/// bytes of COMMIT.
async fn insert_note(backend: Backend, url: &str) -> sqlx::Result<()> {
    let mut connection = connect(url).await?;
    if backend != Backend::Sqlite {
        let isolation = sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
        isolation.execute(&mut connection).await?;
    }
    let mut transaction = connection.begin().await?;
    let insert = sqlx::query("INSERT INTO note VALUES (1)");
    insert.execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::test]
async fn each_test_has_an_empty_database() {
    for backend in Backend::ALL {
        let (one, other) = tokio::join!(fresh_database(backend), fresh_database(backend));
        create_table(&one.url).await;
        insert_note(backend, &one.url).await.unwrap();
        create_table(&other.url).await;
        assert_eq!(count_notes(&one.url).await.unwrap(), 1);
        assert_eq!(count_notes(&other.url).await.unwrap(), 0);
    }
}

async fn is_removed_on_drop(database: TestDatabase) {
    create_table(&database.url).await;
    let url = database.url.clone();
    drop(database);
    count_notes(&url).await.expect_err("it was removed");
}

#[tokio::test]
async fn database_is_removed_if_its_server_stays() {
    for backend in Backend::SERVERS {
        let server = fresh_database(backend).await;
        let database = TestDatabase::create(backend, &server.url, true).await;
        is_removed_on_drop(database.unwrap()).await;
    }
    is_removed_on_drop(fresh_database(Backend::Sqlite).await).await;
}

#[tokio::test]
async fn cut_around_commit_hides_it_or_its_answer() {
    for (backend, is_before) in Backend::SERVERS
        .into_iter()
        .flat_map(|it| [(it, true), (it, false)])
    {
        let database = fresh_database(backend).await;
        create_table(&database.url).await;
        let (proxy, url) = Proxy::before(&database.url).await;
        let trigger = if is_before {
            proxy.cut_before(backend.commit_message(), 1)
        } else {
            proxy.cut_after(backend.commit_message(), 1)
        };
        let inserted = insert_note(backend, &url).await;
        inserted.expect_err("the connection is cut");
        assert_eq!(trigger.fired(), 1);
        let committed = i64::from(!is_before);
        assert_eq!(count_notes(&database.url).await.unwrap(), committed);
        if is_before {
            // The trigger fires once. The insert succeeds only if the server has noticed the cut and
            // released the row.
            soon(insert_note(backend, &url)).await.unwrap();
            assert_eq!(trigger.fired(), 1);
            assert_eq!(count_notes(&database.url).await.unwrap(), 1);
        }
    }
}

#[tokio::test]
async fn killed_server_keeps_what_it_committed() {
    for backend in Backend::SERVERS {
        let server = PrivateServer::start(backend).await;
        let url = server.url().to_owned();
        create_table(&url).await;
        insert_note(backend, &url).await.unwrap();

        let process = server.process();
        server.kill9();
        count_notes(&url).await.expect_err("the server is dead");
        server.restart().await;
        assert_ne!(server.process(), process);
        assert_eq!(count_notes(&url).await.unwrap(), 1);

        let directory = server.directory().to_owned();
        drop(server);
        count_notes(&url).await.expect_err("the server has ended");
        assert!(!directory.exists());
    }
}
