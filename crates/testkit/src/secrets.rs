//! Looks for secrets in what programs print and servers answer: API keys, secrets of webhooks, and passwords of
//! their settings.

use std::process::Command;

/// Shorter passwords may be part of other words.
const SHORTEST: usize = 8;

/// The passwords in the settings of a program: `scheme://user:password@host`.
pub(crate) fn of(command: &Command) -> Vec<String> {
    let variables = command.get_envs().filter_map(|(_, value)| value);
    let settings = variables.chain(command.get_args());
    let passwords = settings.flat_map(|setting| {
        let urls = setting.to_str().unwrap_or_default().split("://").skip(1);
        let passwords = urls.filter_map(|url| url.split_once('@')?.0.split_once(':'));
        passwords
            .map(|(_, password)| password.to_owned())
            .collect::<Vec<_>>()
    });
    passwords
        .filter(|password| password.len() >= SHORTEST)
        .collect()
}

/// The first line with one of the passwords, an API key (`slk_<id>_<64 hexadecimal digits>`) or the secret of a webhook
/// (`whsec_<44 digits of base64>`).
#[must_use]
pub fn leaked<'a>(text: &'a str, passwords: &[String]) -> Option<&'a str> {
    let has_key = |line: &str| {
        line.split("slk_").skip(1).any(|key| {
            let secret = key.split_once('_').map_or("", |(_, secret)| secret);
            let digits = secret.bytes().take_while(u8::is_ascii_hexdigit);
            digits.count() >= 64
        })
    };
    let has_webhook_secret = |line: &str| {
        line.split("whsec_").skip(1).any(|secret| {
            let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
            secret.bytes().take_while(is_digit).count() >= 44
        })
    };
    let is_leak = |line: &&str| {
        has_key(line)
            || has_webhook_secret(line)
            || passwords
                .iter()
                .any(|password| line.contains(password.as_str()))
    };
    text.lines().find(is_leak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_keys_and_passwords_are_found() {
        let mut command = Command::new("x");
        command.env("DATABASE_URL", "mysql://shop:c4n4ry-1@db/stock");
        command.arg("--redlock-urls=redis://:c4n4ry-2@a,redis://:c4n4ry-3@b");
        let passwords = of(&command);
        assert_eq!(passwords, ["c4n4ry-1", "c4n4ry-2", "c4n4ry-3"]);
        let found = leaked("a\nb c4n4ry-2 d\n", &passwords);
        assert_eq!(found, Some("b c4n4ry-2 d"));
        let key = format!("slk_12_{}", "0f".repeat(32));
        let text = format!("key={key}");
        assert_eq!(leaked(&text, &[]), Some(&*text));
        let secret = format!("whsec_{}=", "aB+".repeat(15));
        assert_eq!(leaked(&secret, &[]), Some(&*secret));
        assert_eq!(leaked("whsec_… is a secret", &[]), None);
        assert_eq!(leaked("send slk_…, not slk_12_0f", &passwords), None);
    }
}
