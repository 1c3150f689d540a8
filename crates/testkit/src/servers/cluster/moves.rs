//! Slots that move from one master to another, as operators move them, while clients use them.

use std::time::Duration;

use anyhow::Result;
use redis::cmd;
use tokio::time::{Instant, sleep};

use super::{ANSWERS_WITHIN, PATIENCE, POLL, RedisCluster, owner};
use crate::eventually;
use crate::servers::redis::connect_to_redis;

/// Upper bound on one MIGRATE, which blocks both nodes; in milliseconds.
const MIGRATES_WITHIN: u32 = 20_000;

impl RedisCluster {
    /// Moves a slot with its keys to another master.
    ///
    /// # Panics
    /// If it has not moved within a minute.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_to_move(slot, to).await {
            assert!(Instant::now() < deadline, "slot {slot}: {error:#}");
            sleep(POLL).await;
        }
        self.all_know(slot, to).await;
    }

    /// Returns when every node knows the master of the slot; replicas learn it by gossip.
    async fn all_know(&self, slot: u16, master: usize) {
        let known = async || {
            let views = self.views().await.unwrap_or_default();
            !views.is_empty() && views.iter().all(|lines| owner(lines, slot) == Some(master))
        };
        eventually("every node knows the master of the slot", PATIENCE, known).await;
    }

    async fn try_to_move(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.master_of(slot).await;
        let assign = format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[to]);
        if from != to {
            self.open_move(slot, from, to).await?;
            self.migrate(slot, from, to).await?;
            let () = self.ask(to, &assign).await?;
            // Refused if a key has appeared, which the next attempt moves.
            let () = self.ask(from, &assign).await?;
        }
        for master in self.masters().await {
            let () = self.ask(master, &assign).await?;
        }
        Ok(())
    }

    /// Lets both masters know that the slot moves.
    ///
    /// # Errors
    /// If one of them refuses that, or does not answer.
    pub async fn open_move(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[from]);
        let () = self.ask(to, &importing).await?;
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[to]);
        self.ask(from, &migrating).await
    }

    /// Moves all keys of a slot.
    async fn migrate(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        loop {
            let some = format!("CLUSTER GETKEYSINSLOT {slot} 64");
            let keys: Vec<String> = self.ask(from, &some).await?;
            if keys.is_empty() {
                return Ok(());
            }
            self.migrate_keys(keys, from, to).await?;
        }
    }

    /// Moves these keys to another master. Returns false if the first one has none of them.
    ///
    /// # Errors
    /// If one of the masters refuses that, or does not answer.
    pub async fn migrate_keys(&self, keys: Vec<String>, from: usize, to: usize) -> Result<bool> {
        let mut migrate = cmd("MIGRATE");
        let port = self.nodes[to].port();
        migrate.arg("127.0.0.1").arg(port).arg("").arg(0);
        // A key that both nodes have comes from a MIGRATE that was not answered in time. Until it is
        // removed from the source, only the source serves it.
        migrate.arg(MIGRATES_WITHIN).arg("REPLACE").arg("KEYS");
        let mut connection = connect_to_redis(self.nodes[from].url()).await?;
        let within = Duration::from_millis(MIGRATES_WITHIN.into());
        connection.set_response_timeout(within + ANSWERS_WITHIN);
        let answer: String = migrate.arg(keys).query_async(&mut connection).await?;
        Ok(answer == "OK")
    }
}
