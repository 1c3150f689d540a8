//! `stocklock failures`: lists the gallery of failures, and runs stories on real servers.

use std::env;

use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{Failure, print_output};
use stocklock_failures::telling::Telling;
use stocklock_failures::{Falsified, Order, Places, Story, Teller};

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
    let found = stocklock_failures::find(name);
    found.ok_or_else(|| "no story has this name; `stocklock failures` lists them".to_owned())
}

/// Lists the stories, or tells some.
pub(super) async fn failures(args: FailuresArgs) -> Result<(), Failure> {
    if args.actor {
        let served = stocklock_failures::serve_actor().await;
        return served.map_err(|error| Failure::Other(error.to_string()));
    }
    if args.markdown {
        return print_output(&stocklock_failures::document());
    }
    let stories = if args.all {
        stocklock_failures::all().iter().collect()
    } else {
        args.stories.clone()
    };
    if stories.is_empty() {
        return list(args.json);
    }
    let teller = Teller::new(args.places()?);
    let mut problems = Vec::new();
    for story in stories {
        match args.tell(&teller, story).await {
            Err(Failure::Other(problem)) => problems.push(problem),
            told => told?,
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::Other(problems.join("\n")))
}

impl FailuresArgs {
    fn places(&self) -> Result<Places, Failure> {
        let program = env::current_exe()
            .map_err(|error| Failure::Other(format!("cannot find this program's file: {error}")))?;
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

    /// Tells one story and prints it. An error is a story that did not come out as it must.
    async fn tell(&self, teller: &Teller, story: &Story) -> Result<(), Failure> {
        let order = if self.swap {
            Order::Swapped
        } else {
            Order::AsWritten
        };
        let mut first: Option<String> = None;
        for _ in 0..self.times {
            let told = teller.tell(story, order, self.falsify.map(Falsified)).await;
            let told = told.map_err(|error| Failure::Other(error.to_string()))?;
            let line = json!(told).to_string();
            match &first {
                None => print_telling(&told, story, self.json)?,
                Some(first) if *first != line => {
                    let problem = format!("{}: a later run differs: {line}", story.name);
                    return Err(Failure::Other(problem));
                }
                Some(_) => {}
            }
            first.get_or_insert(line);
            if let Some(problem) = told.problem() {
                return Err(Failure::Other(problem));
            }
        }
        Ok(())
    }
}

fn print_telling(told: &Telling, story: &Story, as_json: bool) -> Result<(), Failure> {
    let text = if as_json {
        json!(told).to_string()
    } else {
        told.text(story)
    };
    print_output(&(text + "\n"))
}

/// Prints the stories by group.
fn list(as_json: bool) -> Result<(), Failure> {
    let mut group = "";
    for story in stocklock_failures::all() {
        if as_json {
            let Story {
                name,
                group,
                summary,
                servers,
                ..
            } = story;
            let line =
                json!({"name": name, "group": group, "summary": summary, "servers": servers});
            print_output(&format!("{line}\n"))?;
            continue;
        }
        if story.group != group {
            group = story.group;
            print_output(&format!("{group}\n"))?;
        }
        print_output(&format!("  {:<28}{}\n", story.name, story.summary))?;
    }
    if as_json {
        return Ok(());
    }
    print_output("\nstocklock failures NAME runs one.\n")
}
