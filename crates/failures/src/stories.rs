//! The list of stories, in the order in which they are shown.

use std::sync::LazyLock;

use crate::story::Story;

macro_rules! stories {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../stories/", $name, ".txt")))),*]
    };
}

/// Name and text of each story. Groups are together.
static TEXTS: &[(&str, &str)] = &stories! {
    "lost-update"
    "negative-stock"
    "mixed-reads"
    "snapshot-before-lock"
    "read-uncommitted-cure"
    "optimistic-on-replica"
    "aba-without-version"
    "retry-inside-snapshot"
    "one-sql-two-warehouses"
    "local-mutex-two-replicas"
    "local-mutex-many-instances"
    "lock-released-before-commit"
    "no-index-locks-table"
    "deadlock-by-order"
    "gap-lock-deadlock"
    "lock-wait-half-commit"
    "watch-on-shared-connection"
    "setnx-without-expiry"
    "expire-not-atomic"
    "lease-too-short"
    "delete-others-lock"
    "check-then-delete"
    "owner-per-object"
    "renewal-from-other-owner"
    "setnx-getset-races"
    "recursion-retry"
    "polling-starves"
    "failover-loses-lock"
    "redis-loses-stock"
    "redlock-paused-client"
    "ephemeral-spin-lock"
    "paused-holder"
    "ghost-node"
    "lock-table-crashed-owner"
    "lock-table-client-clock"
    "pool-abandoned-transaction"
    "client-gone"
    "ambiguous-commit"
    "late-packet"
    "proxy-retries-get"
    "flush-setting-loses-commits"
    "cache-breakdown"
    "fence-without-version"
    "swallowed-error"
};

/// All stories.
///
/// # Panics
/// If the text of a story has an error, which the tests find.
#[must_use]
pub fn all() -> &'static [Story] {
    static ALL: LazyLock<Vec<Story>> = LazyLock::new(|| {
        let parsed = TEXTS.iter().map(|(name, text)| Story::parse(name, text));
        parsed
            .map(|story| story.unwrap_or_else(|error| panic!("{error}")))
            .collect()
    });
    &ALL
}

/// The story with this name.
pub(crate) fn find(name: &str) -> Option<&'static Story> {
    all().iter().find(|story| story.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stories_have_their_parts_and_stay_together() {
        let mut groups = BTreeSet::new();
        let mut last = "";
        for story in all() {
            let (name, steps) = (story.name, story.naive.steps.len());
            assert!(steps > 0 && !story.right.steps.is_empty(), "{name}");
            assert!(steps <= 20, "{name} is too long");
            for step in story.steps() {
                assert!(!step.sentence.is_empty(), "{name}: {}", step.command);
            }
            if story.group != last {
                last = story.group;
                assert!(groups.insert(last), "{last} is not in one place");
            }
        }
    }

    #[test]
    fn wrong_story_is_reported_with_its_line() {
        let text = "title: t\ngroup: g\nsummary: s\nwhy: w\nright: r\nstrategy: x\nservers: sqlite\n\
                    finding: f\nanomaly: a != 1\n[naive]\nA | SELECT 1 | 1\n";
        let error = Story::parse("bad", text).unwrap_err().to_string();
        assert!(error.contains("bad: A | SELECT 1 | 1"), "{error}");
    }
}
