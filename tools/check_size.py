#!/usr/bin/env python3
"""Fails on source files over 400 lines and on text that is not ASCII."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_LINES = 400
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".js", ".css", ".html")
TEXTS = SOURCES + (".md", ".txt", ".json", ".yml", ".toml", "CMakeLists.txt", "dev", "run")
SKIPPED = {".git", "build", ".cache", "__pycache__"}


def files():
    """Tracked and new files; every file outside build folders where git does not answer."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if listing.returncode == 0:
        yield from sorted(set(filter(None, listing.stdout.decode().split("\0"))))
        return
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), ROOT)


def main():
    problems = []
    count = 0
    for relative in files():
        path = os.path.join(ROOT, relative)
        if not relative.endswith(TEXTS) or not os.path.isfile(path):
            continue
        count += 1
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        if relative.endswith(SOURCES) and len(lines) - 1 > MAX_LINES:
            problems.append("%s: %d lines, the limit is %d: split it"
                            % (relative, len(lines) - 1, MAX_LINES))
        for number, line in enumerate(lines, 1):
            if not line.isascii():
                problems.append("%s:%d: not ASCII" % (relative, number))
    for problem in problems:
        print(problem)
    print("check_size: %d files, %d problems" % (count, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
