//! What a story does to processes, servers and the network: the commands of the actor `machine`.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use stocklock_servers::proxy::{Hold, Mode, Proxy};

use crate::session::{Address, Kind};

/// The proxies between actors and servers, and the messages that they hold.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    proxies: HashMap<&'static str, Proxy>,
    holds: HashMap<String, Hold>,
}

impl Networks {
    /// Starts a proxy between an actor and the server at an address.
    pub(crate) async fn place(&mut self, actor: &'static str, address: &Address) {
        let (proxy, _) = if address.kind == Kind::Zookeeper {
            Proxy::before_zookeeper(&address.url).await
        } else {
            Proxy::before(&address.url).await
        };
        self.proxies.insert(actor, proxy);
    }

    /// The address through the proxy of an actor.
    pub(crate) fn through(&self, actor: &str, address: &Address) -> Result<Address> {
        address.through(self.proxy(actor)?.address().port())
    }

    /// Carries out a command about the network. Returns false if it is not one.
    pub(crate) async fn run(&mut self, command: &str) -> Result<bool> {
        let words: Vec<_> = command.split_whitespace().collect();
        match *words.as_slice() {
            ["cut", actor, "before", text] => {
                self.proxy(actor)?.cut_before(text.as_bytes(), 1);
            }
            ["cut", actor, "after", text] => {
                self.proxy(actor)?.cut_after(text.as_bytes(), 1);
            }
            ["hold", actor, "at", text] => {
                let hold = self.proxy(actor)?.hold_and_cut(text.as_bytes());
                self.holds.insert(actor.to_owned(), hold);
            }
            ["deliver", actor] => {
                let hold = self.holds.remove(actor);
                let hold = hold.context("nothing is held")?;
                hold.held().await;
                hold.deliver().await;
            }
            ["strand", actor] => self.proxy(actor)?.set(Mode::Strand).await,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn proxy(&self, actor: &str) -> Result<&Proxy> {
        let proxy = self.proxies.get(actor);
        proxy.with_context(|| format!("{actor} has no proxy"))
    }
}
