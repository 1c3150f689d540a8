//! Draws the decisions of one schedule from a seed.

use fastrand::Rng;

/// Draws the decisions of a random walk.
pub(super) struct Random {
    rng: Rng,
    /// A fault happens in one of so many steps in which it could.
    rarity: usize,
    /// The tasks that are seldom polled while others can be, one bit for each number modulo 64. Without
    /// them, no message would be late for long.
    slow: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rarity = [2, 4, 16, 64][rng.usize(..4)];
        let (half, other_half) = (rng.u64(..), rng.u64(..));
        let slow = [0, half, half & other_half][rng.usize(..3)];
        Self { rng, rarity, slow }
    }

    /// A number below `options`.
    pub(super) fn option(&mut self, options: usize) -> usize {
        self.rng.usize(..options)
    }

    /// 0, or one of the other options if a fault happens.
    pub(super) fn fault(&mut self, options: usize) -> usize {
        let happens = self.rng.usize(..self.rarity) == 0;
        if happens {
            self.rng.usize(1..options)
        } else {
            0
        }
    }

    /// The place of a task in `ready`.
    pub(super) fn task(&mut self, ready: &[usize]) -> usize {
        let mut place = self.rng.usize(..ready.len());
        for _ in 0..4 {
            let is_slow = (self.slow >> (ready[place] % 64)) & 1 == 1;
            if !is_slow {
                break;
            }
            place = self.rng.usize(..ready.len());
        }
        place
    }
}
