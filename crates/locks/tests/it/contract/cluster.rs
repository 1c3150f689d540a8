//! The contract on Redis Cluster.
//!
//! The cases without faults share one cluster. Each of the others has its own.

use stocklock_locks::LockManager;

use super::{admin, cancel, coordination, core, faults, jobs, leases, multi, permits};
use crate::rig::claiming::Claiming;
use crate::rig::cluster::ClusterRig;

basic_contract!(locks, ClusterRig::start(), tokio::test);
faulty_contract!(contract, broken, ClusterRig::start_private(), tokio::test);
restart_contract!(restarted, ClusterRig::start_private(), tokio::test);
permit_contract!(
    shares,
    ClusterRig::start(),
    tokio::test,
    dead_waiters_cost_their_patience_once,
    waiter_for_too_many_permits_is_refused,
    late_claim_takes_nothing,
    late_claim_keeps_expired_permits_free
);
claim_contract!(
    writers,
    Claiming::start(ClusterRig::start(), LockManager::write),
    tokio::test
);
coordination_contract!(
    numbers,
    ClusterRig::start(),
    tokio::test,
    repeated_change_counts_once
);
contract!(
    broken_claims,
    ClusterRig::start_private(),
    tokio::test,
    permits: [claim_with_lost_answer_has_one_holder],
    coordination: [
        change_with_lost_answer_counts_once,
        silent_server_is_reported_to_participants,
    ],
);
