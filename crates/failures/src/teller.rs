//! Tells stories on servers.

use crate::Failure;
use crate::places::{Places, Servers};
use crate::story::Story;
use crate::telling::Telling;
use crate::variant::{Falsified, tell};

/// Which steps run as the naive variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The naive ones.
    AsWritten,
    /// The right ones, to check that the anomaly is not found in every run.
    Swapped,
}

/// Tells stories, one after the other. Private servers end with it.
#[derive(Debug)]
pub struct Teller(Servers);

impl Teller {
    /// Starts nothing yet.
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self(Servers::new(places))
    }

    /// Runs both variants of a story.
    ///
    /// # Errors
    /// The step whose answer is not the expected one, or what else failed.
    pub async fn tell(
        &self,
        story: &Story,
        order: Order,
        falsified: Option<Falsified>,
    ) -> Result<Telling, Failure> {
        let is_naive = order == Order::AsWritten;
        let mut falsified = falsified;
        Ok(Telling {
            name: story.name,
            naive: tell(story, &self.0, is_naive, &mut falsified).await?,
            right: tell(story, &self.0, false, &mut falsified).await?,
        })
    }
}
