//! Redis killed in the middle of a race, and started again.
