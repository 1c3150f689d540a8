#!/usr/bin/env python3
"""Checks that the tests notice each change of the code that tests/mutations.json lists.

Each mutation replaces one text of one file. In a copy of the sources in target/mutations, the named
tests must pass without a mutation, and each must fail with its own. Only the package that has the
test is compiled. Arguments: only the mutations whose promise contains one of these words; `--some N`
takes N of them by chance, with SEED. Tests that run only in `make verify` are left out, unless the
mutation has the field `verify`. Exits with 1 if a mutation was not noticed.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COPY = BUILD / "mutations"
TARGETS = {"lib": ["--lib"], "it": ["--test", "it"]}
# Without it, a test that a mutation makes hang would end this run.
LIMIT_S = 1200


def copy_sources():
    """Copies what git tracks. Writes only what differs, so that cargo compiles only that."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    names = [name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]
    for old in [path for path in COPY.rglob("*") if path.is_file()]:
        if str(old.relative_to(COPY)) not in names:
            old.unlink()
    for name in names:
        source, copy = ROOT / name, COPY / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)


def packages():
    """The manifest of the package that has each test function."""
    found = {}
    for name in sorted(COPY.rglob("*.rs")):
        inside = name.relative_to(COPY).parts
        root = COPY.joinpath(*inside[:2]) if inside[0] == "crates" else COPY
        for test in re.findall(r"\bfn (\w+)", name.read_text()):
            found.setdefault(test, root / "Cargo.toml")
    return found


def run(manifest, target, in_verify, tests):
    """How the tests end: "passed", "failed", "timed out", or "not run" if they cannot be compiled."""
    manifest = ["--manifest-path", str(manifest), "--locked"]
    command = ["cargo", "test", *manifest, "--no-fail-fast", *TARGETS[target]]
    env = os.environ | {"CARGO_TARGET_DIR": str(BUILD), "CARGO_INCREMENTAL": "1"}
    # Some tests run the examples, which `cargo test --test` does not compile.
    examples = ["cargo", "build", *manifest, "--quiet", "--examples"]
    if target == "it" and subprocess.run(examples, cwd=COPY, env=env).returncode:
        return "not run"
    skipped = [] if in_verify else ["--skip", "full::"]
    process = subprocess.Popen(
        [*command, "--", *tests, *skipped], cwd=COPY, env=env, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except BaseException as reason:
        # The tests are in their own session, so a signal that ends this script does not end them.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(reason, subprocess.TimeoutExpired):
            return "timed out"
        raise
    results = [line for line in output.splitlines() if line.startswith("test result: ")]
    ran = any(" 0 passed; 0 failed" not in line for line in results)
    if not ran or (process.returncode != 0 and not any("FAILED" in line for line in results)):
        print(output[-3000:])
        return "not run"
    return "failed" if process.returncode else "passed"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--some", type=int, metavar="N")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    mutations = json.loads((ROOT / "tests" / "mutations.json").read_text())
    words = options.words
    chosen = [m for m in mutations if not words or any(word in m["promise"] for word in words)]
    if options.some:
        seed = os.environ.get("SEED") or parser.error("--some needs SEED, a number")
        chosen = random.Random(seed).sample(chosen, min(options.some, len(chosen)))
    copy_sources()
    package = packages()
    kind_of = lambda m: (package[m["test"]], m["target"], m.get("verify", False))
    kinds = {}
    for mutation in chosen:
        kind = kind_of(mutation)
        kinds.setdefault(kind, set()).add(mutation["test"])
    for kind, tests in kinds.items():
        if (ended := run(*kind, sorted(tests))) != "passed":
            sys.exit(f"without a mutation: {ended}: {', '.join(sorted(tests))}")
    missed = 0
    for mutation in chosen:
        file = COPY / mutation["file"]
        original = file.read_text()
        file.write_text(original.replace(mutation["find"], mutation["replace"]))
        try:
            ended = run(*kind_of(mutation), [mutation["test"]])
        finally:
            file.write_text(original)
        missed += ended != "failed"
        # A test that hangs says nothing about what is wrong.
        result = {"failed": "noticed", "timed out": "TIMED OUT"}.get(ended, "NOT NOTICED")
        print(f"{result:11}", mutation["promise"], flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
