#!/usr/bin/env python3
"""Prints the slowest tests of a JUnit report of cargo-nextest, how many tests failed, and how many are
flaky: they failed, and passed when they were repeated. The argument is the path of the report.
"""

import sys
from xml.etree import ElementTree

SLOWEST = 20


def main(path):
    tests, failed, flaky = [], 0, []
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for test in suite.iter("testcase"):
            name = f"{suite.get('name')} {test.get('name')}"
            tests.append((float(test.get("time", 0)), name))
            failed += test.find("failure") is not None or test.find("error") is not None
            if test.find("flakyFailure") is not None or test.find("flakyError") is not None:
                flaky.append(name)
    print("slowest tests:")
    for seconds, name in sorted(tests, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    print(f"flaky: {len(flaky)}")
    for name in flaky:
        print(f"    {name}")


if __name__ == "__main__":
    main(sys.argv[1])
