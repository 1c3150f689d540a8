//! The gallery of failures: every story shows its anomaly on real servers, its right way does not, and
//! every story notices an answer that a server did not give.

use std::fs;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};
use stocklock_failures::story::Seen;
use stocklock_failures::telling::Told;
use stocklock_failures::{Falsified, Order, Places, Story, Teller, Variant, all};
use stocklock_testkit::run::{number, rng, variable};
use tokio::time::Instant;

use crate::support::process::{Ended, Process, this_build};
use crate::support::services::Backend::{Mysql, Postgres};
use crate::support::services::{
    TestDatabase, TestRedis, TestZooKeeper, fresh_database, fresh_redis, fresh_zookeeper,
};

/// The limit on the time in which all stories run once, when they run many times on servers that are up.
/// An idle machine with two cores needs 15 s.
const ALL_WITHIN: Duration = Duration::from_mins(1);

struct Servers {
    mariadb: TestDatabase,
    postgres: TestDatabase,
    redis: TestRedis,
    zookeeper: TestZooKeeper,
}

impl Servers {
    async fn start() -> Self {
        let (mariadb, postgres, redis, zookeeper) = tokio::join!(
            fresh_database(Mysql),
            fresh_database(Postgres),
            fresh_redis(),
            fresh_zookeeper()
        );
        Self {
            mariadb,
            postgres,
            redis,
            zookeeper,
        }
    }

    fn variables(&self) -> [(&str, &str); 4] {
        [
            ("MARIADB_URL", &self.mariadb.url),
            ("POSTGRES_URL", &self.postgres.url),
            ("REDIS_URL", &self.redis.url),
            ("ZOOKEEPER_CONNECT", &self.zookeeper.connect),
        ]
    }

    fn teller(&self) -> Teller {
        Teller::new(Places {
            mariadb: Some(self.mariadb.url.clone()),
            postgres: Some(self.postgres.url.clone()),
            redis: Some(self.redis.url.clone()),
            zookeeper: Some(self.zookeeper.connect.clone()),
            program: this_build().into(),
        })
    }
}

fn tellings() -> u32 {
    number("TEST_TELLINGS", 1)
}

/// Asserts that the servers answered what the page and the document show. Of an error, these show only
/// the code.
fn assert_as_written(told: &Told, name: &str, written: &Variant) {
    assert_eq!(told.finding, written.finding, "{name}");
    assert_eq!(told.steps.len(), written.steps.len(), "{name}");
    for (seen, written) in told.steps.iter().zip(&written.steps) {
        let is_same = |seen: &Seen, written: &Seen| {
            let is_error = seen.answer.starts_with(&format!("{}:", written.answer));
            (seen.answer == written.answer || is_error) && seen.command == written.command
        };
        assert!(is_same(seen, written), "{name}: {seen:?} {written:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_story_shows_its_anomaly() {
    let servers = Servers::start().await;
    let teller = servers.teller();
    let (begin, mut slowest) = (Instant::now(), (0.0, ""));
    for story in all() {
        let (start, mut first) = (Instant::now(), None);
        for _ in 0..tellings() {
            let told = teller.tell(story, Order::AsWritten, None).await;
            let told = told.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(told.problem(), None);
            assert!(told.naive.anomaly && !told.right.anomaly);
            assert_as_written(&told.naive, story.name, &story.naive);
            assert_as_written(&told.right, story.name, &story.right);
            let told = json!(told);
            assert_eq!(*first.get_or_insert(told.clone()), told, "{}", story.name);
        }
        let took = start.elapsed().as_secs_f64();
        if took > slowest.0 {
            slowest = (took, story.name);
        }
    }
    let took = begin.elapsed();
    println!(
        "figure: {} stories, each {} times, in {:.1} s; slowest {} with {:.1} s",
        all().len(),
        tellings(),
        took.as_secs_f64(),
        slowest.1,
        slowest.0
    );
    let is_late = tellings() > 1 && took > ALL_WITHIN * tellings();
    assert!(!is_late, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_way_in_the_naive_place_is_noticed() {
    let servers = Servers::start().await;
    let path = variable("PATH").expect("PATH is set");
    let mut variables = vec![("PATH", path.as_str())];
    variables.extend(servers.variables());
    // A process has a minute.
    for stories in all().chunks(8) {
        let mut arguments = vec!["failures", "--json", "--swap"];
        arguments.extend(stories.iter().map(|story| story.name));
        let swapped = Process::run(&arguments, &variables).await;
        assert_eq!(swapped.code, Some(1), "{}", swapped.stderr);
        let told: Vec<Value> = (swapped.stdout.lines())
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        assert_eq!(told.len(), stories.len());
        for (story, told) in stories.iter().zip(told) {
            let problem = format!("{}: the naive variant shows no anomaly", story.name);
            assert!(swapped.stderr.contains(&problem), "{}", swapped.stderr);
            assert_eq!(told["name"], story.name);
            assert_eq!(told["naive"]["anomaly"], false, "{}", story.name);
        }
    }
}

/// Whether each answer is replaced, or one of each story that needs servers.
fn replaces_all() -> bool {
    variable("TEST_ANSWERS").is_some_and(|answers| answers == "all")
}

fn replaced(story: &Story) -> Range<usize> {
    let answers = story.answers();
    if replaces_all() || story.servers == ["sqlite"] {
        return 0..answers;
    }
    let one = rng().usize(0..answers);
    one..one + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_answer_of_a_server_fails_each_story() {
    let servers = Servers::start().await;
    let teller = servers.teller();
    let mut count = 0;
    for story in all() {
        let (name, answers) = (story.name, story.answers());
        for number in replaced(story) {
            let falsified = Some(Falsified(number));
            let told = teller.tell(story, Order::AsWritten, falsified).await;
            let error = told.map(|_| format!("answer {number} of {name} does not matter"));
            let error = error.expect_err("an error").to_string();
            assert!(error.contains("777"), "{error}");
            count += 1;
        }
        if replaces_all() || story.servers == ["sqlite"] {
            let none = Some(Falsified(answers));
            let told = teller.tell(story, Order::AsWritten, none).await;
            assert!(told.is_ok(), "{name} has not {answers} answers: {told:?}");
        }
    }
    println!("figure: {count} answers replaced, each noticed by its story");
}

/// A story whose only step must wait for a lock, and does not.
const NOTHING_TO_WAIT_FOR: &str = "\
title: t
group: g
summary: s
why: w
right: r
strategy: x
servers: postgres
finding: f
anomaly: rows < 1

[naive]
A | SELECT 1 | waits | No lock is needed.

[right]
A | SELECT 1 | 1 | No lock is needed.

[evidence]
rows | SELECT 1 | 1 | 1
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_that_does_not_wait_fails_its_story() {
    let servers = Servers::start().await;
    let story = Story::parse("nothing-to-wait-for", NOTHING_TO_WAIT_FOR).expect("a story");
    let told = servers.teller().tell(&story, Order::AsWritten, None).await;
    let error = told.expect_err("it does not wait").to_string();
    assert!(error.contains("did not wait, but answered `1`"), "{error}");
}

/// Runs the command. The stories must need no server but SQLite.
async fn run(words: &[&str]) -> Ended {
    Process::run(&[&["failures"][..], words].concat(), &[]).await
}

#[tokio::test]
async fn failures_lists_every_story() {
    let (text, lines) = (run(&[]).await, run(&["--json"]).await);
    assert_eq!(
        (text.code, lines.code),
        (Some(0), Some(0)),
        "{}",
        text.stderr
    );
    assert_eq!(lines.stdout.lines().count(), all().len());
    for story in all() {
        assert!(text.stdout.contains(story.summary), "{}", text.stdout);
        assert!(text.stdout.contains(story.group), "{}", text.stdout);
    }
}

#[tokio::test]
async fn failures_tells_a_story_as_text_and_json() {
    let text = run(&["lost-update"]).await;
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    insta::assert_snapshot!("failures_lost_update", text.stdout);
    let json = run(&["lost-update", "--json", "--times", "3"]).await;
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let told: Value = serde_json::from_str(&json.stdout).expect("one line of JSON");
    assert_eq!(told["name"], "lost-update");
    assert_eq!(told["naive"]["anomaly"], true);
    assert_eq!(told["naive"]["evidence"], json!({"sold": 2, "left": 9}));
    assert_eq!(told["naive"]["steps"][0]["answer"], "10");
    assert_eq!(told["right"]["anomaly"], false);
    assert_eq!(told["right"]["evidence"], json!({"sold": 2, "left": 8}));
}

#[tokio::test]
async fn failures_exits_with_1_if_an_answer_is_wrong() {
    let falsified = run(&["lost-update", "--falsify", "0"]).await;
    assert_eq!(falsified.code, Some(1), "{}", falsified.stderr);
    let unknown = run(&["no-such-story"]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
}

#[test]
fn document_of_the_gallery_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/failures.md");
    let document = fs::read_to_string(file).expect("docs/failures.md");
    let hint = "run `stocklock failures --markdown >docs/failures.md`";
    assert!(document == stocklock_failures::document(), "{hint}");
}
