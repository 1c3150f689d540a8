//! The interface of the manager to the tables.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::tables::Tables;
use super::{MemoryBackend, Question, RESPONSE_LIMIT};
use crate::backend::{
    Admin, Attempt, Backend, Changed, Claim, Contender, Fencing, Grant, Left, Nudge, NumberKey,
    NumberRequest, Numbers, Properties, Release, Renewed, Request, Sealed,
};
use crate::claims::LockView;
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::{Nonce, REMEMBERED};
use crate::shared::token::Token;
use crate::shared::topics::Listener;

/// A back end whose server is a data structure in this process.
pub trait InProcess: Clone + Debug + Send + Sync + 'static {
    fn client(&self) -> &MemoryBackend;
}

impl InProcess for MemoryBackend {
    fn client(&self) -> &MemoryBackend {
        self
    }
}

impl<S: InProcess> Sealed for S {}

impl<S: InProcess> Fencing for S {
    type Token = Token;
}

#[async_trait]
impl<S: InProcess> Backend for S {
    fn properties(&self) -> Properties {
        Properties {
            name: self.client().client.source.kind,
            response_limit: RESPONSE_LIMIT,
            session: None,
            max_lease: None,
            lookahead: 0,
        }
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        Some(self)
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(MemoryContender {
            client: self.client().clone(),
            request,
            changed: None,
            left: Left::Nothing,
        })
    }

    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError> {
        let renewals = renewals.to_vec();
        let renew = move |tables: &Tables| tables.renew(&renewals);
        self.client().ask(Question::Renew, renew).await
    }

    async fn release(&self, request: &Request, unclear: bool) -> Result<Release, BackendError> {
        let (request, buries) = (request.clone(), !self.client().is_local);
        let release = move |tables: &Tables| tables.release(&request, unclear, buries);
        self.client().ask(Question::Release, release).await
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let name = name.to_owned();
        let verify = move |tables: &Tables| tables.verify(&name, nonce);
        self.client().ask(Question::Verify, verify).await
    }

    fn attach(&self, nudge: Nudge) {
        let MemoryBackend { server, client, .. } = self.client();
        server.managers.attach(&nudge, || {});
        let open = || client.closed.store(false, Ordering::SeqCst);
        client.managers.attach(&nudge, open);
    }

    async fn detach(&self, nudge: &Nudge) {
        let MemoryBackend { server, client, .. } = self.client();
        server.managers.detach(nudge, || {});
        let close = || client.closed.store(true, Ordering::SeqCst);
        client.managers.detach(nudge, close);
    }
}

#[async_trait]
impl<S: InProcess> Numbers for S {
    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError> {
        let request = request.clone();
        let remember = REMEMBERED * u32::from(!self.client().is_local);
        let change = move |tables: &Tables| tables.change(&request, remember);
        self.client().ask(Question::Change, change).await?
    }

    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError> {
        let mut changed = self.client().tables().listen_to_number(key);
        let value = || {
            let key = key.clone();
            let value = move |tables: &Tables| tables.number(&key);
            self.client().ask(Question::Read, value)
        };
        let first = value().await?;
        if other_than != Some(first) {
            return Ok(first);
        }
        let clock = &self.client().tables().clock;
        tokio::select! {
            () = changed.changed() => {}
            // The number may expire, which is not published.
            () = clock.sleep_until(clock.now() + self.client().fallback_of(Claim::READ)) => {}
        }
        value().await
    }

    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError> {
        let name = name.to_owned();
        let tokens = move |tables: &Tables| tables.tokens(&name);
        self.client().ask(Question::Read, tokens).await
    }

    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        let name = name.to_owned();
        let reduce = move |tables: &Tables| tables.reduce(&name, nonce, keep);
        self.client().ask(Question::Reduce, reduce).await
    }
}

#[async_trait]
impl<S: InProcess> Admin for S {
    async fn ping(&self) -> Result<(), BackendError> {
        self.client().ask(Question::Ping, |_| ()).await
    }

    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError> {
        let name = name.to_owned();
        let inspect = move |tables: &Tables| tables.inspect(&name, claim);
        self.client().ask(Question::Read, inspect).await
    }

    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError> {
        let (name, buries) = (name.to_owned(), !self.client().is_local);
        let revoke = move |tables: &Tables| tables.revoke(&name, nonce, claim, buries);
        self.client().ask(Question::Revoke, revoke).await
    }

    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let name = name.to_owned();
        let begin = move |tables: &Tables| tables.begin_period(&name, nonce, period);
        self.client().ask(Question::Period, begin).await
    }
}

struct MemoryContender {
    client: MemoryBackend,
    request: Request,
    changed: Option<Listener>,
    left: Left,
}

impl Sealed for MemoryContender {}

#[async_trait]
impl Contender for MemoryContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let request = self.request.clone();
        let fallback = self.client.fallback_of(request.claim);
        let source = &self.client.client.source;
        let candidate = source.candidate();
        let ask = self.client.ask(Question::Acquire, move |tables| {
            tables.acquire(&request, fallback, candidate)
        });
        let attempt = async { ask.await.flatten() };
        let mut attempt = self.left.by(self.request.claim, attempt).await?;
        if let Attempt::Held(Grant {
            fence: Some(fence), ..
        }) = &mut attempt
        {
            fence.source = source.saw(&fence.source);
        }
        Ok(attempt)
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        match &mut self.changed {
            Some(changed) => changed.changed().await,
            changed => *changed = Some(self.client.tables().listen(&self.request)),
        }
        Ok(())
    }

    fn left(&self) -> Left {
        self.left
    }
}
