//! Settings that a command passes on to child processes.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use secrecy::SecretString;

/// Parsed settings, and environment variables from which a child process parses the same settings.
#[derive(Debug)]
pub struct Inherited<T> {
    /// The settings.
    pub parsed: T,
    /// Name and value of each variable. Secrets are passed this way because other users of the
    /// machine can read a command line.
    pub(crate) variables: Vec<(OsString, SecretString)>,
}

impl<T: Args> Args for Inherited<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Args> FromArgMatches for Inherited<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let variable = |argument: &Arg| {
            let value = matches.get_raw(argument.get_id().as_str())?.next()?;
            Some((argument.get_env()?.to_owned(), value.to_str()?.into()))
        };
        let settings = T::augment_args(Command::new("settings"));
        Ok(Self {
            parsed: T::from_arg_matches(matches)?,
            variables: settings.get_arguments().filter_map(variable).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use secrecy::ExposeSecret;

    use super::*;
    use crate::config::DatabaseConfig;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        database: Inherited<DatabaseConfig>,
    }

    #[test]
    fn flags_and_defaults_become_variables() {
        let cli = Cli::parse_from(["test", "--database-url", "mysql://shop:c4n4ry@db/stock"]);
        let variables = cli.database.variables.iter();
        let variables: Vec<_> = variables
            .map(|(name, value)| (name.to_str().unwrap(), value.expose_secret()))
            .collect();
        let expected = [
            ("DATABASE_URL", "mysql://shop:c4n4ry@db/stock"),
            ("DATABASE_POOL_SIZE", "16"),
        ];
        assert_eq!(variables, expected);
        assert_eq!(cli.database.parsed.url(), expected[0].1);
        assert!(!format!("{:?}", cli.database).contains("c4n4ry"));
    }
}
