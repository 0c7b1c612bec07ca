#!/usr/bin/env python3
"""count_tests.py FOLDER...: sums the test results that scripts/test.sh left: the slowest 20, and 'N passed, N failed, N skipped'.

A folder holds ctest.xml (JUnit), for each GoogleTest program NAME.json, and where there are tests in Python pytest.xml.
A test of ctest that left no JSON counts as one; so does a GoogleTest program that died before its report.
"""

import json
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path

SLOWEST = 20


def junit(report):
    """(name, outcome, seconds) of each <testcase> of a JUnit file, as ctest and pytest write them."""
    for case in xml.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "notrun":
            outcome = "failed"  # "notrun": ctest did not find its program
        elif case.find("skipped") is not None or case.get("status") == "disabled":
            outcome = "skipped"
        else:
            outcome = "passed"
        name = " ".join(dict.fromkeys((case.get("classname"), case.get("name"))))  # ctest gives a test's name as its class too
        yield name, outcome, float(case.get("time") or 0)


def googletest(report):
    """The same of the tests of a GoogleTest program that were not filtered out."""
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test["status"] != "RUN":
                continue
            outcome = "failed" if "failures" in test else "passed" if test["result"] == "COMPLETED" else "skipped"
            yield f"{report.stem} {test['classname']}.{test['name']}", outcome, float(test["time"].removesuffix("s"))


def folder(path):
    for name, outcome, seconds in junit(path / "ctest.xml"):
        report = path / f"{name}.json"
        tests = list(googletest(report)) if report.exists() else []
        yield from tests
        if not tests or (outcome == "failed" and all(test[1] != "failed" for test in tests)):
            yield name, outcome, seconds
    if (path / "pytest.xml").exists():
        yield from junit(path / "pytest.xml")


tests = [test for argument in map(Path, sys.argv[1:]) if (argument / "ctest.xml").exists() for test in folder(argument)]
print(f"The slowest {SLOWEST}, in seconds:")
for name, _, seconds in sorted(tests, key=lambda test: -test[2])[:SLOWEST]:
    print(f"{seconds:8.2f}  {name}")
total = Counter(outcome for _, outcome, _ in tests)
print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
