//! The words of a Redis command, as `redis-cli` reads them: quotes keep spaces together.

/// Splits a command. There is no escape character; a word may be quoted with `"` or `'`.
pub(crate) fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in command.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn quotes_keep_spaces_and_other_quotes() {
        let command = r#"EVAL "return redis.call('GET', KEYS[1])" 1  ~lock ''"#;
        let script = "return redis.call('GET', KEYS[1])";
        assert_eq!(words(command), ["EVAL", script, "1", "~lock", ""]);
    }
}
