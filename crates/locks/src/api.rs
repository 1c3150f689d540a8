//! What a program uses: the manager, the builder of an acquisition, the guard, and what is built on them.

mod admin;
pub(crate) mod builder;
pub mod coordination;
mod election;
pub(crate) mod guard;
pub mod guide;
pub(crate) mod lost;
pub(crate) mod manager;
pub(crate) mod multi;
pub(crate) mod periodic;
#[cfg(feature = "tower")]
pub mod tower;
