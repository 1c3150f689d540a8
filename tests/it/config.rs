//! The configuration: the command line is sound, and `.env.example` is in step with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use clap::{Arg, Command, CommandFactory, Parser};
use stocklock::cli::{self, Cli};
use stocklock::config::Mode;

/// Every setting of every command, by its variable.
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

/// `# NAME=value`, each preceded by a line of help.
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
        let doubled = example.insert(name.to_owned(), value.to_owned());
        assert!(doubled.is_none(), "{name} stands there twice");
    }
    example
}

/// The service's settings as `serve` reads them from the flags on its command line.
pub(crate) fn config(flags: impl IntoIterator<Item = String>) -> stocklock::config::Config {
    let words = ["stocklock", "serve"].map(str::to_owned);
    let cli = Cli::try_parse_from(words.into_iter().chain(flags));
    match cli.expect("the flags are right").command {
        cli::Command::Serve(config) => config,
        other => panic!("serve was read as {other:?}"),
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_example_names_every_setting_and_no_other() {
    let named: BTreeSet<_> = example().into_keys().collect();
    let known: BTreeSet<_> = settings().into_keys().collect();
    assert_eq!(named, known);
}

#[test]
fn the_example_shows_the_defaults() {
    let example = example();
    for (name, argument) in settings() {
        if let [default] = argument.get_default_values() {
            assert_eq!(default.to_str(), Some(example[&name].as_str()), "{name}");
        }
    }
}

#[test]
fn the_example_can_be_used_as_it_stands() {
    let settings = settings();
    let flags = example().into_iter().map(|(name, value)| {
        let long = settings[&name].get_long().expect("every setting is a flag");
        format!("--{long}={value}")
    });
    assert_eq!(config(flags).validate(Mode::Serve), Ok(()));
}

#[test]
fn every_setting_has_one_flag_and_one_variable_of_the_same_name() {
    for (name, argument) in settings() {
        let long = argument.get_long().expect("every setting is a flag");
        assert_eq!(long.replace('-', "_").to_uppercase(), name);
    }
}

#[test]
fn the_lab_keeps_to_this_machine_and_production_does_not() {
    let config = config([]);
    assert_eq!(config.listen(Mode::Lab), (Ipv4Addr::LOCALHOST, 8080).into());
    let everywhere = (Ipv4Addr::UNSPECIFIED, 8080).into();
    assert_eq!(config.listen(Mode::Serve), everywhere);
}
