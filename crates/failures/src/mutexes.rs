//! Mutexes that stand for those in the memory of a story's processes, by their names.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::actor::PATIENCE;

/// The mutexes, and the guards of those that are held.
#[derive(Default)]
pub(crate) struct Mutexes {
    all: HashMap<String, Arc<Mutex<()>>>,
    held: HashMap<String, OwnedMutexGuard<()>>,
}

/// An actor that waits for a mutex.
pub(crate) struct Waiting {
    name: String,
    held: JoinHandle<OwnedMutexGuard<()>>,
}

impl Mutexes {
    /// Carries out `lock NAME` or `unlock NAME`.
    pub(crate) fn run(&mut self, command: &str) -> Result<String> {
        let (word, name) = command.split_once(' ').unwrap_or_default();
        let answer = match word {
            "lock" => match self.named(name).try_lock_owned() {
                Ok(held) => {
                    self.held.insert(name.to_owned(), held);
                    "ok"
                }
                Err(_) => "locked by another",
            },
            "unlock" if self.held.remove(name).is_some() => "ok",
            "unlock" => "error: not locked",
            _ => bail!("unknown command of a mutex: {command}"),
        };
        Ok(answer.to_owned())
    }

    /// Starts to wait. Fails if the mutex is free.
    pub(crate) fn wait(&mut self, command: &str) -> Result<Waiting> {
        let name = command.strip_prefix("lock ").unwrap_or(command).to_owned();
        let mutex = self.named(&name);
        let is_held = mutex.try_lock().is_err();
        ensure!(is_held, "did not wait: nothing holds the mutex");
        let held = tokio::spawn(mutex.lock_owned());
        Ok(Waiting { name, held })
    }

    /// Waits until the actor holds the mutex.
    pub(crate) async fn finish(&mut self, waiting: Waiting) -> Result<String> {
        let held = timeout(PATIENCE, waiting.held).await;
        let held = held.ok().context("it still waits for the mutex")??;
        self.held.insert(waiting.name, held);
        Ok("ok".to_owned())
    }

    fn named(&mut self, name: &str) -> Arc<Mutex<()>> {
        Arc::clone(self.all.entry(name.to_owned()).or_default())
    }
}
