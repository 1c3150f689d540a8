//! The page of the lab and the report of a race, as they are sent.
//!
//! Both draw with the same scripts, in `page/`. The report contains them and its figures, so it opens
//! without a network.

use serde_json::Value;

/// The page.
pub(crate) const INDEX: &str = include_str!("page/index.html");

const REPORT: &str = include_str!("page/report.html");
const CSS: &str = include_str!("page/page.css");

/// Name and text of each script. `app.js` loads those that the page needs.
const SCRIPTS: [(&str, &str); 10] = [
    ("format.js", include_str!("page/format.js")),
    ("charts.js", include_str!("page/charts.js")),
    ("run.js", include_str!("page/run.js")),
    ("compare.js", include_str!("page/compare.js")),
    ("report.js", include_str!("page/report.js")),
    ("race.js", include_str!("page/race.js")),
    ("strategies.js", include_str!("page/strategies.js")),
    ("failures.js", include_str!("page/failures.js")),
    ("stock.js", include_str!("page/stock.js")),
    ("app.js", include_str!("page/app.js")),
];

/// The first scripts, up to `report.js`, draw a report.
const REPORT_SCRIPTS: usize = 5;

/// The content type and the text of a file that the page loads; `None` if there is no such file.
pub(crate) fn file(name: &str) -> Option<(&'static str, &'static str)> {
    if name == "page.css" {
        return Some(("text/css; charset=utf-8", CSS));
    }
    let (_, text) = SCRIPTS.iter().find(|(script, _)| *script == name)?;
    Some(("text/javascript; charset=utf-8", text))
}

/// The report that shows `data`.
pub(crate) fn report(data: &Value) -> String {
    // `</script>` in a text would end the element.
    let data = data.to_string().replace('<', "\\u003c");
    let scripts = SCRIPTS[..REPORT_SCRIPTS].iter();
    let scripts: String = scripts.map(|(_, text)| *text).collect();
    // The data last: they may contain the other marks.
    let report = REPORT.replace("{{css}}", CSS);
    report
        .replace("{{scripts}}", &scripts)
        .replace("{{data}}", &data)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_names_files_that_exist() {
        let named = INDEX
            .split('"')
            .filter_map(|part| part.strip_prefix("/lab/page/"));
        let named: Vec<_> = named.collect();
        let has_both = named.contains(&"page.css") && named.contains(&"app.js");
        assert!(has_both, "{named:?}");
        for name in named {
            assert!(file(name).is_some(), "{name}");
        }
    }

    #[test]
    fn text_in_a_report_cannot_end_its_script() {
        let report = report(&json!({"sku": "</script>{{css}}"}));
        assert!(report.contains(r#"{"sku":"\u003c/script>{{css}}"}"#));
        assert!(!report.contains("{{data}}") && !report.contains("{{scripts}}"));
    }
}
