//! `docs/failures.md`, from the stories.

use std::fmt::Write as _;

use crate::stories;
use crate::story::{Seen, Story};

const HEAD: &str = "\
# The gallery of failures

Classic ways to get stock wrong, each beside the right way. `stocklock failures` lists them, and \
`stocklock failures NAME` runs one on real servers. The page of the lab plays them step by step.

This file is generated from `crates/failures/stories/` by `stocklock failures --markdown`. The test \
[`every_story_shows_its_anomaly`](../tests/it/failures.rs) runs every story: the naive steps must show \
the anomaly, and the right steps must not. Each answer below is compared with that of the server.

In a command, `redis>` names the server if the actor uses several. `waits` means that the server lists \
the connection as waiting; `(the answer arrives)` is the end of the wait. A command that needs some time \
to get its answer is repeated. The actor `machine` changes processes, servers and the network; `clock` \
lets time pass.
";

/// The document.
#[must_use]
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    let mut group = "";
    for story in stories::all() {
        if story.group != group {
            group = story.group;
            // Writing to a text cannot fail.
            let _ = write!(text, "\n## {group}\n");
        }
        add(&mut text, story);
    }
    text
}

fn add(text: &mut String, story: &Story) {
    let Story {
        name,
        title,
        summary,
        why,
        right_way,
        strategy,
        servers,
        setup,
        ..
    } = story;
    let servers = servers.join(", ");
    let _ = write!(
        text,
        "\n### {title}\n\n`stocklock failures {name}` · servers: {servers}\n\n{summary}\n\n\
         - Why: {why}\n- The right way: {right_way}\n- Our strategies: {strategy}\n"
    );
    let setup = setup.join("\n").replace('~', "");
    let _ = write!(text, "\nBefore the first step:\n\n```text\n{setup}\n```\n");
    for (title, variant) in [
        ("What goes wrong", &story.naive),
        ("The right way", &story.right),
    ] {
        let _ = write!(text, "\n{title}:\n\n");
        for step in &variant.steps {
            let Seen {
                actor,
                command,
                answer,
                sentence,
            } = step;
            let _ = writeln!(text, "1. **{actor}** `{command}` → `{answer}`. {sentence}");
        }
        let _ = write!(text, "\nAt the end: {}\n", variant.finding);
    }
}
