//! Guarded writes in ZooKeeper.

use zookeeper_client::{Error, MultiWriteError, MultiWriteResult};

use super::ZooKeeperBackend;
use super::session::{ANY_VERSION, Health, backend_error, disconnected};
use crate::api::guard::LockGuard;
use crate::shared::error::{BackendError, LockError, LostReason};

/// The operations of the request: the check of the lock, then the write.
const CHECK: usize = 0;
const WRITE: usize = 1;

impl ZooKeeperBackend {
    /// Writes the data of a node if this guard still holds its lock, in one transaction of the ensemble.
    /// This is stronger than comparing tokens: a late write is refused even before the first write of the
    /// next holder. It does not tell a write lock from a read lock or permits: use it with an exclusive
    /// claim, and not after [`downgrade`](LockGuard::downgrade).
    ///
    /// The node is below the chroot of the connection string, and must exist. `version` is the version
    /// that the node must have, or `None` for any. Returns the new version, or `None` if the node has
    /// another one than `version`.
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the lock is no longer held: nothing was written. The guard is lost.
    /// - [`LockError::Unavailable`] if it is unknown whether the node was written, if the node does not
    ///   exist, or if the guard belongs to another back end.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The node may have been written nevertheless.
    pub async fn write_if_held(
        &self,
        guard: &LockGuard,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<Option<i32>, LockError> {
        guard.check()?;
        let hold = guard.hold();
        let failed = |error: BackendError| hold.unavailable("write below", error);
        let lost = |reason| {
            self.0.places.remove(hold.request.nonce);
            let reason = hold.lose(reason);
            Err(LockError::Lost { reason })
        };
        let place = self.0.places.get(hold.request.nonce);
        let Some((lock, place)) = place.and_then(|place| Some((place.path()?, place))) else {
            let cause = "the guard belongs to another back end, or its lock is gone";
            return Err(failed(BackendError::permanent(cause)));
        };
        let session = &place.session;
        if session.health() == Health::Disconnected {
            return Err(failed(disconnected()));
        }
        let mut writer = session.client.new_multi_writer();
        let prepared = writer
            .add_check_version(&lock, ANY_VERSION)
            .and_then(|()| writer.add_set_data(path, data, version));
        prepared.map_err(|error| failed(backend_error(error)))?;
        match session.write(writer.commit()).await {
            Ok(results) => {
                let Some(MultiWriteResult::SetData { stat }) = results.get(WRITE) else {
                    let cause = "the server returned no result of the write";
                    return Err(failed(BackendError::permanent(cause)));
                };
                Ok(Some(stat.version))
            }
            Err(MultiWriteError::OperationFailed {
                index: WRITE,
                source: Error::BadVersion,
            }) => Ok(None),
            Err(MultiWriteError::OperationFailed {
                index: CHECK,
                source: Error::NoNode,
            }) => lost(self.0.reason(session, hold.request.nonce).await),
            Err(MultiWriteError::RequestFailed {
                source: Error::SessionExpired,
            }) => lost(LostReason::SessionExpired),
            Err(error) => Err(failed(backend_error(error.into()))),
        }
    }
}
