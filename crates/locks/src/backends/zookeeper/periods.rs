//! Periods of jobs: a node that was last written at the start of the period.
//!
//! Nodes: `<root>/.periods/<name>` contains the nonce that has started the period. A write to
//! `<root>/.periods` itself reads the clock of the leader.

use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error};

use super::session::backend_error;
use super::{ZooKeeperBackend, names};
use crate::backend::Periods;
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

#[async_trait]
impl Periods for ZooKeeperBackend {
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let session = self.0.sessions.connected().await?;
        let nonce = nonce.to_string();
        let directory = format!("{}/.periods", self.0.sessions.root);
        let path = format!("{directory}/{}", names::element(name));
        loop {
            let now = session.time(&directory).await.map_err(backend_error)?;
            let started = match session.ask(session.client.get_data(&path)).await {
                Ok((starter, _)) if starter == nonce.as_bytes() => return Ok(None),
                Ok((_, stat)) => {
                    let since = u64::try_from(now - stat.mtime).unwrap_or(0);
                    let rest = period.saturating_sub(Duration::from_millis(since));
                    if !rest.is_zero() {
                        return Ok(Some(rest));
                    }
                    let version = Some(stat.version);
                    let write = session.client.set_data(&path, nonce.as_bytes(), version);
                    session.write(write).await.map(drop)
                }
                Err(Error::NoNode) => {
                    let options = CreateMode::Persistent.with_acls(session.acls);
                    let create = session.client.create(&path, nonce.as_bytes(), &options);
                    session.write(create).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => return Ok(None),
                // Another client was faster.
                Err(Error::BadVersion | Error::NodeExists) => {}
                Err(error) => return Err(backend_error(error)),
            }
        }
    }
}
