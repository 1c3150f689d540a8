#!/usr/bin/env python3
"""Checks that the tests notice each change of the code that tests/mutations.json lists.

Each mutation replaces one text of one file. In a copy of the sources in target/mutations, the named
tests must pass without a mutation, and each must fail with its own. Arguments: only the mutations
whose promise contains one of these words. Exits with 1 if a mutation was not noticed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutations"
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


def run(target, tests):
    """How the tests end: "passed", "failed", "timed out", or "not run" if they cannot be compiled."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-fail-fast", *TARGETS[target]]
    env = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target"), "CARGO_INCREMENTAL": "0"}
    # Some tests run the examples, which `cargo test --test` does not compile.
    examples = ["cargo", "build", "--workspace", "--locked", "--quiet", "--examples"]
    if target == "it" and subprocess.run(examples, cwd=COPY, env=env).returncode:
        return "not run"
    process = subprocess.Popen(
        [*command, "--", *tests], cwd=COPY, env=env, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "timed out"
    results = [line for line in output.splitlines() if line.startswith("test result: ")]
    ran = any(" 0 passed; 0 failed" not in line for line in results)
    if not ran or (process.returncode != 0 and not any("FAILED" in line for line in results)):
        print(output[-3000:])
        return "not run"
    return "failed" if process.returncode else "passed"


def main():
    words = sys.argv[1:]
    mutations = json.loads((ROOT / "tests" / "mutations.json").read_text())
    chosen = [m for m in mutations if not words or any(word in m["promise"] for word in words)]
    copy_sources()
    for target in TARGETS:
        tests = sorted({m["test"] for m in chosen if m["target"] == target})
        if tests and (ended := run(target, tests)) != "passed":
            sys.exit(f"without a mutation: {ended}: {', '.join(tests)}")
    missed = 0
    for mutation in chosen:
        file = COPY / mutation["file"]
        original = file.read_text()
        file.write_text(original.replace(mutation["find"], mutation["replace"]))
        try:
            ended = run(mutation["target"], [mutation["test"]])
        finally:
            file.write_text(original)
        missed += ended != "failed"
        # A test that hangs says nothing about what is wrong.
        result = {"failed": "noticed", "timed out": "TIMED OUT"}.get(ended, "NOT NOTICED")
        print(f"{result:11}", mutation["promise"], flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
