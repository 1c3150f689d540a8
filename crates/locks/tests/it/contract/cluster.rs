//! The contract on Redis Cluster.
//!
//! The cases without faults share one cluster. Each of the others has its own.

use super::CLAIMED;
use crate::rig::cluster::ClusterRig;

contract! { tokio::test;
    cluster = ClusterRig::start() => basics expiry tokens shares patience late_claims;
    broken = ClusterRig::start_private() => deletion loss silence restart lost_claim;
}
