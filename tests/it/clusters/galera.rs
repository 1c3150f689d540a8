//! MariaDB Galera.

use futures_util::future::join_all;
use stocklock_testkit::eventually;

use super::{Shop, every_fault_is_survived, primary_that_is_cut_off_sells_nothing};
use crate::faults::buyers::Buyers;
use crate::faults::{Ledger, SOON};
use crate::support::services::{Cluster, GaleraCluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_loses_no_sale_with_the_node_that_sells() {
    let cluster = GaleraCluster::start().await;
    every_fault_is_survived(&cluster, &cluster.url(), "Galera").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_node_that_is_cut_off_sells_nothing() {
    let cluster = GaleraCluster::start().await;
    primary_that_is_cut_off_sells_nothing(&cluster, "Galera").await;
}

/// Goal: a node without a majority sells nothing, `/readyz` says so, and nothing of its attempts appears later.
///
/// Method: the two other nodes are stopped, and continue later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_node_without_a_majority_sells_nothing() {
    let cluster = GaleraCluster::start().await;
    let shop = Shop::open(&cluster.url()).await;
    let buyers = shop.sell(0).await;
    shop.sells(0, &buyers).await;
    assert!(cluster.is_primary(0).await);
    for other in [1, 2] {
        let frozen = cluster.supervisor(other).freeze().await;
        frozen.expect("it runs");
    }
    let refused = async || shop.are_ready().await == [false; 2];
    eventually("no replica is ready", SOON, refused).await;
    join_all(buyers.each_ref().map(Buyers::are_answered)).await;
    let before = buyers.each_ref().map(Buyers::sales);
    join_all(buyers.each_ref().map(Buyers::are_answered)).await;
    assert_eq!(shop.are_ready().await, [false; 2]);
    assert_eq!(buyers.each_ref().map(Buyers::sales), before);
    for other in [1, 2] {
        cluster.supervisor(other).thaw().expect("it runs");
    }
    cluster.is_whole().await.expect("the nodes find each other");
    shop.sells(0, &buyers).await;
    let ledger = Ledger::at(&cluster.url_of(0));
    for purchases in join_all(buyers.map(Buyers::stop)).await {
        purchases.assert_exact(&ledger).await;
    }
}
