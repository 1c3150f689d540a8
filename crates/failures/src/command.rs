//! `stocklock failures`: lists the gallery of failures, and runs stories on real servers.

use std::env;
use std::fmt::Write as _;

use anyhow::Context as _;
use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use crate::places::Places;
use crate::story::Story;
use crate::teller::{Order, Teller};
use crate::telling::Telling;
use crate::variant::Falsified;
use crate::{Failure, document, process, stories};

/// Tell the stories of the gallery of failures
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct FailuresArgs {
    /// The stories to run; without one, list all
    #[arg(value_name = "NAME", value_parser = story)]
    stories: Vec<&'static Story>,

    /// Run every story
    #[arg(long, conflicts_with = "stories")]
    all: bool,

    /// Print JSON, one line for each story
    #[arg(long)]
    json: bool,

    /// Run the right variant as the naive one, which must fail: exit code 1
    #[arg(long)]
    swap: bool,

    /// Run each story this many times; all must give the same result
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,

    /// Replace the server's answer of this number by another, which must fail: exit code 1
    #[arg(long, value_name = "NUMBER", hide = true)]
    falsify: Option<usize>,

    /// Print docs/failures.md
    #[arg(long, hide = true)]
    markdown: bool,

    /// Run the commands of one actor, which are read from standard input
    #[arg(long, hide = true)]
    actor: bool,

    /// The servers.
    #[command(flatten)]
    servers: StoryServers,
}

/// The servers of the stories. A private server is started for each that is not set.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers")]
pub(super) struct StoryServers {
    /// A database of `MariaDB`, `mysql://…`; each story creates its own database beside it
    /// [default: a private server]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    mariadb_url: Option<SecretString>,

    /// A database of `PostgreSQL`, `postgres://…`; each story creates its own database beside it
    /// [default: a private server]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    postgres_url: Option<SecretString>,

    /// A Redis, `redis://…`; stories use keys with a prefix [default: a private server]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    redis_url: Option<SecretString>,

    /// A `ZooKeeper`, `host:port`; stories use their own nodes [default: a private server]
    #[arg(long, env, value_name = "HOSTS")]
    zookeeper_connect: Option<String>,
}

fn story(name: &str) -> Result<&'static Story, String> {
    let found = stories::find(name);
    found.ok_or_else(|| "no story has this name; `stocklock failures` lists them".to_owned())
}

impl FailuresArgs {
    /// Lists the stories, or tells some. `print` writes to standard output.
    ///
    /// # Errors
    /// If a story did not come out as it must, or could not be told; if `print` fails.
    pub async fn run<E: From<Failure>>(
        self,
        print: impl Fn(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.actor {
            return Ok(process::serve_actor().await.map_err(Failure::from)?);
        }
        if self.markdown {
            return print(&document());
        }
        let stories = if self.all {
            stories::all().iter().collect()
        } else {
            self.stories.clone()
        };
        if stories.is_empty() {
            return print(&list(self.json));
        }
        let teller = Teller::new(self.places()?);
        let mut problems = Vec::new();
        for story in stories {
            let mut first: Option<String> = None;
            for _ in 0..self.times {
                match self.tell(&teller, story, first.as_deref()).await {
                    Ok((line, telling)) => {
                        if first.is_none() {
                            let text = if self.json {
                                line.clone()
                            } else {
                                telling.text(story)
                            };
                            print(&(text + "\n"))?;
                        }
                        if let Some(problem) = telling.problem() {
                            problems.push(problem);
                            break;
                        }
                        first.get_or_insert(line);
                    }
                    Err(problem) => {
                        problems.push(problem.to_string());
                        break;
                    }
                }
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Failure(problems.join("\n")).into())
    }

    fn places(&self) -> Result<Places, Failure> {
        let program = env::current_exe().context("cannot find this program's file")?;
        let url = |url: &Option<SecretString>| url.as_ref().map(|url| url.expose_secret().into());
        let servers = &self.servers;
        Ok(Places {
            mariadb: url(&servers.mariadb_url),
            postgres: url(&servers.postgres_url),
            redis: url(&servers.redis_url),
            zookeeper: servers.zookeeper_connect.clone(),
            program,
        })
    }

    /// Tells one story, which must come out like `first`. Also returns it as a line of JSON.
    async fn tell(
        &self,
        teller: &Teller,
        story: &Story,
        first: Option<&str>,
    ) -> Result<(String, Telling), Failure> {
        let order = if self.swap {
            Order::Swapped
        } else {
            Order::AsWritten
        };
        let telling = teller
            .tell(story, order, self.falsify.map(Falsified))
            .await?;
        let line = json!(telling).to_string();
        if first.is_some_and(|first| first != line) {
            let error = format!("{}: a later run differs: {line}", story.name);
            return Err(Failure(error));
        }
        Ok((line, telling))
    }
}

/// The stories by group.
fn list(as_json: bool) -> String {
    let mut text = String::new();
    let mut group = "";
    for story in stories::all() {
        if as_json {
            let (name, group) = (story.name, story.group);
            let (summary, servers) = (story.summary, &story.servers);
            let line =
                json!({"name": name, "group": group, "summary": summary, "servers": servers});
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{line}");
            continue;
        }
        if story.group != group {
            group = story.group;
            let _ = writeln!(text, "{group}");
        }
        let _ = writeln!(text, "  {:<28}{}", story.name, story.summary);
    }
    if !as_json {
        text += "\nstocklock failures NAME runs one.\n";
    }
    text
}
