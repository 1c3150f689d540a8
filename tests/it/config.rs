//! The configuration: the command line is valid, `.env.example` agrees with it, and values are read strictly.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::Ipv4Addr;

use clap::{Arg, Command, CommandFactory, Parser};
use rstest::rstest;
use stocklock::cli::{self, Cli};
use stocklock::config::Mode;
use stocklock_testkit::process::Process as Program;

use crate::commands::{PASSWORD, assert_one_line_error};
use crate::support::process::{Process, this_build};

/// Every setting of every command, by its environment variable.
pub(crate) fn settings() -> BTreeMap<String, Arg> {
    let command = Cli::command();
    let arguments = command.get_subcommands().flat_map(Command::get_arguments);
    arguments
        .filter_map(|argument| {
            let variable = argument.get_env()?.to_str()?.to_owned();
            Some((variable, argument.clone()))
        })
        .collect()
}

/// The lines `# NAME=value` of `.env.example`, each of which must follow a line of help.
fn example() -> BTreeMap<String, String> {
    let lines: Vec<_> = include_str!("../../.env.example").lines().collect();
    let mut example = BTreeMap::new();
    for pair in lines.windows(2) {
        let setting = pair[1]
            .strip_prefix("# ")
            .and_then(|line| line.split_once('='));
        let Some((name, value)) = setting.filter(|(name, _)| !name.contains(' ')) else {
            continue;
        };
        assert!(pair[0].starts_with("# "), "{name} has no line of help");
        let duplicate = example.insert(name.to_owned(), value.to_owned());
        assert!(duplicate.is_none(), "{name} is there twice");
    }
    example
}

/// The configuration that `serve` parses from command line flags.
pub(crate) fn config(flags: impl IntoIterator<Item = String>) -> stocklock::config::Config {
    let words = ["stocklock", "serve"].map(str::to_owned);
    let cli = Cli::try_parse_from(words.into_iter().chain(flags));
    match cli.expect("valid flags").command {
        cli::Command::Serve(config) => config,
        other => panic!("serve was parsed as {other:?}"),
    }
}

#[test]
fn command_line_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn example_names_every_setting_and_no_other() {
    let named: BTreeSet<_> = example().into_keys().collect();
    let known: BTreeSet<_> = settings().into_keys().collect();
    assert_eq!(named, known);
}

#[test]
fn example_shows_the_defaults() {
    let example = example();
    for (name, argument) in settings() {
        if let [default] = argument.get_default_values() {
            assert_eq!(default.to_str(), Some(example[&name].as_str()), "{name}");
        }
    }
}

#[test]
fn example_is_a_valid_configuration() {
    let settings = settings();
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("a command");
    let of_serve: BTreeSet<_> = serve.get_arguments().filter_map(Arg::get_env).collect();
    // The other settings are only for `failures`.
    let example = example().into_iter();
    let example = example.filter(|(name, _)| of_serve.contains(OsStr::new(name)));
    let flags = example.map(|(name, value)| {
        let long = settings[&name].get_long().expect("every setting is a flag");
        format!("--{long}={value}")
    });
    assert_eq!(config(flags).validate(Mode::Serve), Ok(()));
}

#[test]
fn every_settings_flag_and_variable_have_the_same_name() {
    for (name, argument) in settings() {
        let long = argument.get_long().expect("every setting is a flag");
        assert_eq!(long.replace('-', "_").to_uppercase(), name);
    }
}

#[test]
fn lab_listens_on_loopback_and_serve_on_all_addresses() {
    let config = config([]);
    assert_eq!(config.listen(Mode::Lab), (Ipv4Addr::LOCALHOST, 8080).into());
    let everywhere = (Ipv4Addr::UNSPECIFIED, 8080).into();
    assert_eq!(config.listen(Mode::Serve), everywhere);
}

/// The settings of `serve` and their defaults, if they have one.
fn settings_of_serve() -> Vec<(String, String)> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("a command");
    let settings = serve.get_arguments().filter_map(|argument| {
        let name = argument.get_env()?.to_str()?.to_owned();
        let default = argument.get_default_values().first();
        let default = default.and_then(|value| value.to_str());
        Some((name, default.unwrap_or_default().to_owned()))
    });
    settings.collect()
}

/// The value of a variable that is read from a file often ends with a newline.
#[tokio::test]
async fn value_with_a_newline_at_its_end_is_refused() {
    for (name, default) in settings_of_serve() {
        let value = match &*name {
            "DATABASE_URL" => "sqlite://stocklock.db\n".to_owned(),
            _ => default + "\n",
        };
        let ended = Process::run(&["serve"], &[(&name, &value)]).await;
        assert_one_line_error(&ended, &name);
    }
    let words = ["migrate", "--database-url=sqlite://stocklock.db "];
    let ended = Process::run(&words, &[]).await;
    assert_one_line_error(&ended, "DATABASE_URL");
}

/// A compose file may have `REDIS_URL: ${REDIS_URL:-}`.
#[tokio::test]
async fn empty_variable_counts_as_not_set() {
    let settings = settings_of_serve();
    let names = settings.iter().map(|(name, _)| &**name);
    // The test needs to know the address, and has no key.
    let names = names.filter(|name| !["LISTEN", "AUTH"].contains(name));
    let empty: Vec<_> = names.map(|name| (name, "")).collect();
    assert!(empty.len() > 20, "{empty:?}");
    let serve = Process::serving(&["serve"], &empty).await;
    let strategies = serve.get("/strategies").await;
    let listed = strategies.ok().to_string();
    assert!(listed.contains("set REDIS_URL"), "{listed}");
    let log = serve.log().await;
    assert!(log.contains("INFO"), "{log}");
}

#[rstest]
#[case(1, "DATABASE_URL=mysql://u:c4n4ry-p4ssw0rd word@127.0.0.1/db\n")]
#[case(4, "# A=c4n4ry-p4ssw0rd b\r\nA=1\r\n\r\nB=c4n4ry-p4ssw0rd b # c\n")]
#[case(3, "LOG='info\n'\nc4n4ry-p4ssw0rd")]
#[case(2, "LOG=info\nDATABASE_URL='c4n4ry-p4ssw0rd\nLOG=info\n")]
#[tokio::test]
async fn wrong_line_of_env_file_is_named_by_its_number(#[case] line: u32, #[case] file: &str) {
    let script = r#"printf %s "$1" >.env; exec "$0" serve"#;
    let program = this_build();
    let words = ["-c", script, &program, file];
    let ended = Program::start("/bin/sh", &words, &[]).ended().await;
    assert_one_line_error(&ended, &format!(".env: line {line} "));
    assert!(!ended.stderr.contains(PASSWORD), "{}", ended.stderr);
}
