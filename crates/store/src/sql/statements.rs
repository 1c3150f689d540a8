//! The texts of the statements.
//!
//! `read.sql` and `write.sql` have those of all dialects. In its own files, a dialect has the words in which they
//! differ (`words.sql`), and its other statements (`write.sql`). A snapshot has all texts of a dialect with
//! their words filled in.

use std::collections::BTreeMap;

use super::statement::Statement;

/// The index of a level's movements in the order of their commits.
pub(crate) const IN_ORDER: &str = "movement_in_order";

/// The same index of the movements of one kind. Sales have none, unless the database has only complete
/// indexes.
pub(crate) const OF_KIND: &str = "movement_of_kind";

/// The same index of the movements with one reference.
pub(crate) const OF_REFERENCE: &str = "movement_of_level_reference";

/// The files of a dialect: its words and its writes.
pub(crate) type Files = [&'static str; 2];

/// The texts of a dialect by their names. `keeps`: a prepared statement still has the right plan when the ledger
/// has grown.
pub(super) fn texts([words, writes]: Files, keeps: bool) -> BTreeMap<String, Statement> {
    let mut known = BTreeMap::new();
    let mut statements = BTreeMap::new();
    let files = [
        words,
        include_str!("read.sql"),
        include_str!("write.sql"),
        writes,
    ];
    for block in files.into_iter().flat_map(|file| file.split("\n\n")) {
        let (notes, lines): (Vec<_>, Vec<_>) =
            block.lines().partition(|line| line.starts_with("--"));
        let header = notes.first().expect("a text has a name");
        let name = header.trim_start_matches(['-', ' ']);
        let name = name.split([' ', ',', ':']).next().unwrap_or_default();
        let text = filled(&lines.join("\n"), &known).trim().to_owned();
        let is_kept = keeps || !header.contains("planned each time");
        if !header.contains(", a part") {
            statements.insert(name.to_owned(), Statement::kept(text.clone(), is_kept));
        }
        known.insert(name.to_owned(), text);
    }
    statements
}

/// The text with its words.
fn filled(text: &str, words: &BTreeMap<String, String>) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').expect("a word ends");
        let (name, index) = name.split_once(' ').unwrap_or((name, ""));
        let word = words.get(name);
        let word = word.unwrap_or_else(|| panic!("there is no text {name} before {text}"));
        filled += &word.replace("$index", index);
        filled += rest;
    }
    filled
}

/// Declares the statements of files as a struct: those of all dialects, and those that one dialect has.
macro_rules! statements {
    ($($name:ident)+, $($own:ident)+) => {
        /// Statements by their names in the files.
        #[derive(Debug)]
        pub(crate) struct Texts {
            $(pub(crate) $name: Statement,)+
            $(pub(crate) $own: Statement,)+
        }

        impl Texts {
            /// One that another dialect has is empty.
            ///
            /// # Panics
            /// The files lack one of those of all dialects.
            pub(crate) fn of(files: Files, keeps: bool) -> Self {
                let mut texts = texts(files, keeps);
                Self {
                    $($name: texts[stringify!($name)].clone(),)+
                    $($own: texts.remove(stringify!($own)).unwrap_or_else(|| "".into()),)+
                }
            }
        }
    };
}

statements! {
    begin begin_snapshot begin_brief begin_read_uncommitted lock_sku integer use_index
    connection_limits
    movements sums clock ledger_id level level_locked level_locked_now level_locked_soon wanted_levels
    wanted_levels_free levels_of_sku levels_of_sku_locked levels_page fence warehouses recorded operation
    operation_with_key operations_with_reference with_keys with_ids returned audit_levels checkpoint_levels
    checkpoint_step api_keys valid_api_keys children last_end was_held open_lines holds_with_ids holds_page
    holds_page_of_level feed_state feed_state_locked feed_page with_versions unpublished last_filled last_old
    webhooks
    create_level delete_level change_level step_version record if_available set if_unchanged if_not_fenced insert_checkpoint
    update_checkpoint insert_api_key revoke_api_key insert_holds extend_hold delete_holds publish set_published
    set_feed_state set_filled fill_published trim_feed insert_webhook change_webhook move_webhook fail_webhook
    delete_webhook,
    update_levels insert_plain insert_held insert_rest insert_plain_of_levels insert_rest_of_levels write_sales
    write write_whole write_shared write_shared_whole write_free write_free_whole
}

impl Texts {
    /// The movements in the order of an index.
    pub(crate) fn movements_by(&self, index: &str) -> String {
        let use_index = self.use_index.as_str();
        format!("movement {}", use_index.replace("$index", index))
    }
}

/// Sends statements by `$query`, and has what else the servers of all dialects have in common.
macro_rules! driver {
    ($query:expr) => {
        $crate::sql::statement::fetch!($query);

        async fn run(
            connection: &mut Self::Connection,
            statement: &'static str,
        ) -> sqlx::Result<()> {
            sqlx::Executor::execute(connection, statement)
                .await
                .map(drop)
        }

        fn texts() -> &'static $crate::sql::statements::Texts {
            static TEXTS: std::sync::OnceLock<$crate::sql::statements::Texts> =
                std::sync::OnceLock::new();
            let texts = || $crate::sql::statements::Texts::of(Self::FILES, Self::KEEPS_PLANS);
            TEXTS.get_or_init(texts)
        }
    };
}
pub(crate) use driver;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::dialect::Dialect;
    use crate::sql::{MySqlServer, PostgresServer, SqliteFile};

    /// Each statement, to be read and explained as a whole.
    fn listed<D: Dialect>() -> String {
        let texts = texts(D::FILES, D::KEEPS_PLANS).into_iter();
        let texts = texts.map(|(name, text)| format!("-- {name}\n{};\n", text.as_str()));
        texts.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn statements_are_sent_as_they_are_listed() {
        insta::assert_snapshot!("sqlite", listed::<SqliteFile>());
        insta::assert_snapshot!("mysql", listed::<MySqlServer>());
        insta::assert_snapshot!("postgres", listed::<PostgresServer>());
    }
}
