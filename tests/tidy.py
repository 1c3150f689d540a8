#!/usr/bin/env python3
"""Checks rules for the sources that the compiler and Cargo cannot: length, heads, words, names, loops of imports,
and that each mutation applies. Prints what breaks a rule. `make check` runs it.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
MAX_TEST_NAME = 60

# A word, and the only files and directories whose code may contain it.
ONLY_IN = {
    "std::env::": (
        "src/config.rs", "src/config/", "tests/", "crates/core/tests/", "crates/lab/", "crates/locks-bench/",
        "crates/locks/examples/", "crates/locks/tests/", "crates/servers/", "crates/testkit/",
    ),
    "dotenvy::": ("src/main.rs",),
    "#[ignore": (),
    "todo!(": (),
    "mod utils": (),
    "mod helpers": (),
    "#[path": (),
}  # fmt: skip

# Archaic or vague words; write a plain word instead: an engineer, is logged, if.
AVOID = re.compile(
    r"\b(nobody|somebody|anybody|whoever|whomever|is told|are told|was told|were told|tells? of|is said|lest|amid|"
    r"thereby|whereby|for ever|anew|once more|of ours|of theirs|all the same|at that|begun|nor is|nor does|nor are|"
    r"to be had|by themselves alone|the likes)\b",
    re.IGNORECASE,
)
# "where" that means "if".
WHERE_IF = re.compile(
    r"(?:^|[,;:] |\. )where (?:it|there|that|this|they|he|one|a|an|the|no|none|nothing|some) "
)
# How many lines with such a word there may be for 1,000 words of prose.
AVOIDED_PER_THOUSAND = 0.25

# The loops of imports that are meant: state and tasks that own each other.
KNOTS = [{"crates/locks/src/held/engine", "crates/locks/src/held/hold", "crates/locks/src/held/watchdog"}]
# The maximum number of such loops, and of the files of each.
MAX_KNOTS = 4

TEST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
# A function with an attribute, or a case of the lock contract.
NAMED = re.compile(r"(?:\]\n *|pub\(super\) )(?:async )?fn (\w+)")
FULL = re.compile(r"^mod full \{.*?^\}", re.MULTILINE | re.DOTALL)
USE = re.compile(r"^ *(?:pub(?:\([a-z]+\))? )?use ([^;]+);", re.MULTILINE)
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")


def files(extension, *directories):
    """The texts of all files in these directories, by their paths."""
    found = (path for directory in directories for path in (ROOT / directory).rglob(f"*.{extension}"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(found)}


def lines_of(text, comments):
    return [line for line in text.splitlines() if line.lstrip().startswith("//") == comments]


def sources_are_short_and_have_heads(sources):
    for path, text in sources.items():
        if not text.startswith("//! "):
            yield f"{path} does not start with //!"
        if (lines := text.count("\n")) > MAX_LINES:
            yield f"{path} has {lines} lines; {MAX_LINES} are allowed"


def restricted_words_are_in_the_listed_files(sources):
    for path, text in sources.items():
        code = "\n".join(lines_of(text, comments=False))
        for word, places in ONLY_IN.items():
            if word in code and not path.startswith(places):
                yield f"{path} contains {word}"


def test_names_are_short(sources):
    names = [(path, name) for path, text in sources.items() for name in TEST.findall(text)]
    assert len(names) > 300, f"only {len(names)} tests were found"
    return [f"{path}: the name {name} is too long" for path, name in names if len(name) > MAX_TEST_NAME]


def mutations_apply_and_name_tests(sources):
    """A mutation whose test runs only in `make verify` has `"verify": true`."""
    texts = [text if "/full" not in path else "" for path, text in sources.items()]
    in_make_test = {name for text in texts for name in NAMED.findall(FULL.sub("", text))}
    everything = "\n".join(sources.values())
    for mutation in json.loads((ROOT / "tests/mutations.json").read_text()):
        promise, test = mutation["promise"], mutation["test"]
        count = (ROOT / mutation["file"]).read_text().count(mutation["find"])
        if count != 1:
            yield f"mutation “{promise}”: `find` is {count} times in {mutation['file']}"
        if f"fn {test}(" not in everything:
            yield f"mutation “{promise}”: there is no test {test}"
        if mutation.get("verify", False) == (test in in_make_test):
            yield f"mutation “{promise}”: `verify` is wrong for {test}"


def prose_is_plain(sources):
    prose = {path: [line.lstrip(" /!") for line in lines_of(text, True)] for path, text in sources.items()}
    documents = files("md", "docs", "loadtest", "crates")
    documents |= {name: (ROOT / name).read_text() for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")}
    prose |= {path: text.splitlines() for path, text in documents.items()}
    lines = [(path, line) for path, lines in prose.items() for line in lines]
    words = sum(len(line.split()) for _, line in lines)
    assert words > 10_000, f"only {words} words were found"
    found = [f"{path}: {line}" for path, line in lines if AVOID.search(line) or WHERE_IF.search(line)]
    rate = 1000 * len(found) / words
    return [f"{rate:.2f} avoided words per 1,000:", *found] if rate > AVOIDED_PER_THOUSAND else []


def module(path):
    """The module of a source, as a path without `.rs`."""
    return tuple(name for name in path.removesuffix(".rs").split("/") if name not in ("lib", "main"))


def absolute(inside, path, depth):
    """What a path means in a module, whose crate has a path of `depth` names. Without a keyword it begins at a
    submodule, or in another crate."""
    found = list(inside)
    for name in path.split("::"):
        if name == "crate":
            found = found[:depth]
        elif name == "super":
            found.pop()
        elif name != "self":
            found.append(name)
    return tuple(found)


def imported(item):
    """The paths of a `use` item, each with its new name, or an empty one."""
    opened, path = [""], ""
    for part in re.split(r"([{},])", re.sub(r"\s+", " ", item) + ","):
        if part == "{":
            opened.append(path)
        elif part in (",", "}"):
            if path and not path.endswith("::"):
                path, _, name = path.partition(" as ")
                yield path, name
            if part == "}":
                opened.pop()
            path = opened[-1] if part == "," else ""
        elif part.strip():
            path += part.strip()


def no_files_import_each_other_in_a_loop(sources):
    """Except a file and its own submodules. A name that a file only passes on counts as that of the file that
    defines it. Unit tests do not count."""
    imports, used = {}, {}
    for path, text in sources.items():
        parts = path.split("/")
        if "src" not in parts:
            continue
        here, depth = module(path), parts.index("src") + 1
        code = "\n".join(lines_of(text, comments=False)).split("\n#[cfg(test)]\nmod tests")[0]
        names = [pair for item in USE.findall(code) for pair in imported(item)]
        names = [(absolute(here, path, depth), name) for path, name in names]
        imports[here] = {name or path[-1]: path for path, name in names if path}
        rest = (absolute(here, path, depth) for path in PATH.findall(USE.sub("", code)))
        used[here] = {*(path for path, _ in names), *rest}

    def definition(path, steps=0):
        ends = (end for end in range(len(path), 0, -1) if path[:end] in used)
        if not (end := next(ends, None)):
            return None
        there, rest = path[:end], path[end:]
        target = imports[there].get(rest[0]) if rest else None
        if target and target != path and steps < 8:
            return definition(target + rest[1:], steps + 1)
        return there

    def is_inside(one, other):
        return one[: len(other)] == other or other[: len(one)] == one

    edges = {
        here: {to for to in map(definition, paths) if to and not is_inside(here, to)}
        for here, paths in used.items()
    }
    reached = {}
    for here in edges:
        seen, unread = set(), [here]
        while unread:
            new = edges[unread.pop()] - seen
            seen |= new
            unread += new
        reached[here] = seen
    loops = {frozenset("/".join(to) for to in reached[here] if here in reached[to]) for here in edges}
    for loop in sorted(loops, key=sorted):
        if not any(loop <= known for known in KNOTS):
            yield f"these files import each other in a loop: {', '.join(sorted(loop))}"
    for known in KNOTS:
        if not any(loop & known for loop in loops):
            yield f"this loop exists no longer: {', '.join(sorted(known))}"
    if max(len(KNOTS), *map(len, KNOTS)) > MAX_KNOTS:
        yield f"KNOTS has more than {MAX_KNOTS} loops, or a loop of more files"


def main():
    sources = files("rs", "src", "tests", "crates")
    assert len(sources) > 100, f"only {len(sources)} sources were found"
    rules = (
        sources_are_short_and_have_heads,
        restricted_words_are_in_the_listed_files,
        test_names_are_short,
        mutations_apply_and_name_tests,
        prose_is_plain,
        no_files_import_each_other_in_a_loop,
    )
    problems = [problem for rule in rules for problem in rule(sources)]
    print("\n".join(problems) or f"{len(rules)} rules hold for {len(sources)} sources")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
