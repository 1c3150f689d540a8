//! The contract on Redis Cluster.
//!
//! The cases without faults share one cluster. Each of the others has its own.

use super::{admin, cancel, core, faults, leases, permits};
use crate::rig::cluster::ClusterRig;

core_contract! {
    locks, ClusterRig::start(), tokio::test, core: [tokens_grow_within_one_source],
    cancel: [acquire_dropped_between_polls_leaves_nothing]
}
faulty_contract! { contract, broken, ClusterRig::start_private(), tokio::test }
restart_contract! { restarted, ClusterRig::start_private(), tokio::test }
permit_contract! {
    shares, ClusterRig::start(), tokio::test, dead_waiters_cost_their_patience_once,
    waiter_for_too_many_permits_is_refused, late_claim_takes_nothing, late_claim_keeps_expired_permits_free
}
contract! {
    broken_claims, ClusterRig::start_private(), tokio::test,
    permits: [claim_with_lost_answer_has_one_holder]
}
