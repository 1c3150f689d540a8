//! The configuration: the command line is valid, and `.env.example` agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::Ipv4Addr;

use clap::{Arg, Command, CommandFactory, Parser};
use stocklock::cli::{self, Cli};
use stocklock::config::Mode;

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
