//! Periods of jobs: a node that was last written at the start of the period.
//!
//! Nodes: `<root>/.periods/<name>` contains the nonce that has started the period. A write to
//! `<root>/.periods` itself reads the clock of the leader.

use std::time::Duration;

use zookeeper_client::{CreateMode, Error};

use super::names;
use super::session::Session;
use crate::shared::nonce::Nonce;

impl Session {
    /// Starts a period. Returns the rest of one that another nonce has started.
    pub(super) async fn begin_period(
        &self,
        root: &str,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, Error> {
        let nonce = nonce.to_string();
        let directory = format!("{root}/.periods");
        let path = format!("{directory}/{}", names::element(name));
        loop {
            let now = self.time(&directory).await?;
            let started = match self.ask(self.client.get_data(&path)).await {
                Ok((starter, _)) if starter == nonce.as_bytes() => return Ok(None),
                Ok((_, stat)) => {
                    let since = u64::try_from(now - stat.mtime).unwrap_or(0);
                    let rest = period.saturating_sub(Duration::from_millis(since));
                    if !rest.is_zero() {
                        return Ok(Some(rest));
                    }
                    let version = Some(stat.version);
                    let write = self.client.set_data(&path, nonce.as_bytes(), version);
                    self.write(write).await.map(drop)
                }
                Err(Error::NoNode) => {
                    let options = CreateMode::Persistent.with_acls(self.acls);
                    let create = self.client.create(&path, nonce.as_bytes(), &options);
                    self.write(create).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => return Ok(None),
                // Another client was faster.
                Err(Error::BadVersion | Error::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
