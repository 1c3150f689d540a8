//! PostgreSQL under Patroni.

use reqwest::Method;
use serde_json::json;
use stocklock_testkit::eventually;

use super::{Shop, every_fault_is_survived, is_replaced, primary_that_is_cut_off_sells_nothing};
use crate::faults::buyers::{Buyers, Keys, PLENTY};
use crate::faults::{Ledger, SOON, send};
use crate::support::proxy::Mode;
use crate::support::services::{Cluster, NODES, PatroniCluster, Replication};

/// So few sales that Patroni promotes a standby without them: it may lack 1 MiB.
const LOST: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patroni_loses_no_sale_with_its_primary() {
    let cluster = PatroniCluster::start(Replication::Synchronous).await;
    every_fault_is_survived(&cluster, &cluster.url(), "Patroni").await;
}

/// Without HAProxy: the URL has all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_is_found_among_the_hosts_of_the_url() {
    let cluster = PatroniCluster::start(Replication::Synchronous).await;
    let urls: Vec<_> = (0..NODES).map(|node| cluster.url_of(node)).collect();
    let (user, _) = urls[0].rsplit_once('@').expect("a user");
    let (_, database) = urls[0].rsplit_once('/').expect("a database");
    let host = |url: &String| url[user.len() + 1..url.len() - database.len() - 1].to_owned();
    let hosts: Vec<_> = urls.iter().map(host).collect();
    let url = format!("{user}@{}/{database}", hosts.join(","));
    every_fault_is_survived(&cluster, &url, "Patroni without HAProxy").await;
}

/// From the other nodes and from etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patroni_primary_that_is_cut_off_sells_nothing() {
    let cluster = PatroniCluster::start(Replication::Synchronous).await;
    primary_that_is_cut_off_sells_nothing(&cluster, "Patroni").await;
}

/// Goal: the method of the other tests notices lost sales, and the service warns of this set-up.
///
/// Method: what the primary sends to its standbys stops on the way. Then it sells, and is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asynchronous_standby_loses_acknowledged_sales() {
    let cluster = PatroniCluster::start(Replication::Asynchronous).await;
    let shop = Shop::open(&cluster.url()).await;
    let warning = "no standby is synchronous";
    eventually("the service warns", SOON, async || {
        shop.replicas.iter().all(|it| it.stderr().contains(warning))
    })
    .await;
    shop.replicas[0].set_level("hot", PLENTY).await;
    let order = || shop.request(0, Method::POST, "/stock/deduct");
    send(order().json(&json!({"sku": "hot"}))).await.ok();
    let old = cluster.primary().await.expect("there is a primary");
    for node in (0..NODES).filter(|node| *node != old) {
        let standby = Ledger::at(&cluster.url_of(node));
        eventually("the standby has the sale", SOON, async || {
            !standby.sold("hot").await.is_empty()
        })
        .await;
    }
    cluster.link(old).set(Mode::Blackhole).await;
    let buyers = Buyers::start("hot", Keys::All, [order()], |_, _| ());
    buyers.sell(LOST).await;
    let purchases = buyers.stop().await;
    cluster.supervisor(old).kill9().expect("it runs");
    is_replaced(&cluster, old).await;
    let new = cluster.primary().await.expect("there is a primary");
    let lost = purchases.lost(&Ledger::at(&cluster.url_of(new))).await;
    println!("figure: asynchronous replication: {lost} acknowledged sales are lost");
    assert_eq!(lost, purchases.acknowledged());
}
