"""Lines of JSON that the program wrote, for the tools beside this file."""

import json
import pathlib
import sys


def fail(message):
    sys.exit(f"{pathlib.PurePath(sys.argv[0]).stem}: {message}")


def read_lines(name):
    """(line number, value) of each line that is not empty; -: the standard input."""
    try:
        with (sys.stdin if name == "-" else open(name, encoding="utf-8")) as file:
            lines = file.read().splitlines()
    except OSError as error:
        fail(f"{name}: {error.strerror}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            fail(f"{name}, line {number}: not JSON ({error.msg})")
