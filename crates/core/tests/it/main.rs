//! The core under every schedule: one binary.

mod explorer;
mod interleavings;

/// The explorer builds a new world for each schedule and spends a quarter of its time on memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
