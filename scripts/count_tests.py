#!/usr/bin/env python3
"""count_tests.py FOLDER...: sums the test results that scripts/test.sh left, in one line 'N passed, N failed, N skipped'.

A folder holds ctest.xml (JUnit), for each GoogleTest program NAME.json, and where there are tests in Python pytest.xml.
A test of ctest that left no JSON counts as one; so does a GoogleTest program that died before its report.
"""

import json
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path


def outcome(case):
    """Of one <testcase> of a JUnit file, as ctest and pytest write them."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def googletest(report):
    counts = Counter()
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if "failures" in test:
                counts["failed"] += 1
            elif test["result"] == "COMPLETED":
                counts["passed"] += 1
            elif test["status"] == "RUN":
                counts["skipped"] += 1
    return counts


def folder(path):
    counts = Counter()
    for case in xml.parse(path / "ctest.xml").iter("testcase"):
        report = path / f"{case.get('name')}.json"
        tests = googletest(report) if report.exists() else Counter()
        if not tests or (outcome(case) == "failed" and not tests["failed"]):
            tests[outcome(case)] += 1
        counts += tests
    if (path / "pytest.xml").exists():
        counts += Counter(outcome(case) for case in xml.parse(path / "pytest.xml").iter("testcase"))
    return counts


total = Counter()
for argument in map(Path, sys.argv[1:]):
    if (argument / "ctest.xml").exists():
        total += folder(argument)
print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
