#!/usr/bin/env python3
"""Runs the tests of a build folder and closes with one line: N passed, N failed, N skipped.

Light tests run in parallel, those labelled heavy* one after the other (they use every core or much
memory), those labelled slow only with --slow. Then the golden vectors, where a folder is given.
Exit code: 0 if something ran and nothing failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.failures = []

    def add_junit(self, path):
        """Counts from ctest's JUnit file, which tells skipped tests from passed ones."""
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.find("failure") is not None or case.get("status") == "fail":
                self.failed += 1
                self.failures.append(case.get("name"))
            elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                # A test whose program is missing is not a test that chose to skip itself.
                message = case.find("skipped")
                text = "" if message is None else message.get("message", "")
                if "Unable to find executable" in text or "_NOT_BUILT" in case.get("name", ""):
                    self.failed += 1
                    self.failures.append(case.get("name"))
                else:
                    self.skipped += 1
            else:
                self.passed += 1


def run_ctest(build, tally, arguments):
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "junit.xml")
        command = ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=ignore",
                   "--output-junit", junit] + arguments
        code = subprocess.run(command, check=False).returncode
        before = tally.failed
        if os.path.exists(junit):
            tally.add_junit(junit)
        if code != 0 and tally.failed == before:
            tally.failed += 1
            tally.failures.append("ctest " + " ".join(arguments))


def run_vectors(build, tally, folder, models):
    program = os.path.join(build, "bin", "vectors_check")
    if not os.path.exists(program):
        print("golden vectors: skipped (this build has no vectors_check)", flush=True)
        return
    print("golden vectors: " + folder, flush=True)
    command = [program, folder, "--models", models]
    result = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True,
                            errors="replace")
    sys.stdout.write(result.stdout)
    counts = re.findall(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", result.stdout)
    if counts:
        passed, failed, skipped = (int(n or 0) for n in counts[-1])
        tally.passed += passed
        tally.skipped += skipped
        tally.failed += failed
        if failed:
            tally.failures.append("vectors_check")
    if result.returncode != 0 and not (counts and int(counts[-1][1])):
        tally.failed += 1
        tally.failures.append("vectors_check (exit code %d)" % result.returncode)
    elif not counts:
        tally.passed += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--filter", default="", help="only tests whose name matches this regex")
    parser.add_argument("--slow", action="store_true", help="the slow tests, and only those")
    parser.add_argument("--sanitizer", action="store_true", help="leave out heavy_model tests")
    parser.add_argument("--vectors", default="", help="folder with golden vectors")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()

    start = time.monotonic()
    tally = Tally()
    chosen = ["-R", options.filter] if options.filter else []
    timeout = ["--timeout", "1200" if options.sanitizer else "600"]
    if options.slow:
        run_ctest(options.build, tally, ["-L", "^slow$", "--timeout", "3600"] + chosen)
    else:
        left_out = "^(slow|heavy_model)$" if options.sanitizer else "^slow$"
        run_ctest(options.build, tally,
                  ["-j", str(options.jobs), "-LE", "^(slow|heavy.*)$"] + timeout + chosen)
        run_ctest(options.build, tally, ["-L", "^heavy", "-LE", left_out] + timeout + chosen)
        if options.vectors:
            run_vectors(options.build, tally, options.vectors,
                        os.environ.get("QEVICT_TEST_MODELS", ""))
        elif not options.filter:
            print("golden vectors: skipped (no folder with them beside this checkout)"
                  if not options.sanitizer else "golden vectors: skipped under sanitizers",
                  flush=True)

    for name in tally.failures:
        print("failed: " + name)
    if tally.passed + tally.failed == 0:
        print("no test ran" + (" (filter: %s)" % options.filter if options.filter else ""))
        tally.failed += 0 if options.slow else 1
    print("%.0f s" % (time.monotonic() - start))
    print("%d passed, %d failed, %d skipped" % (tally.passed, tally.failed, tally.skipped),
          flush=True)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
