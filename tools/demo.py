#!/usr/bin/env python3
"""Asks a model about a long document with the full cache and with QEvict, and compares.

Prints, side by side: the answer, the bytes that the KV cache held at the end and at its peak, time
to first token, speed, and what became of the document's windows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LABEL_WIDTH = 24
COLUMN_WIDTH = 30


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def run(options, prompt_file, arguments):
    """One `qevict run --json`; its JSON object. Exits with the program's message if it fails."""
    command = [options.qevict, "run", "-m", options.model, "--chat", "-f", prompt_file, "--temp",
               "0", "-n", str(options.predict), "--json"] + arguments
    print("$ qevict " + " ".join(command[1:]).replace(prompt_file, "PROMPT"), file=sys.stderr)
    # On a terminal the program's own progress shows; elsewhere it is kept for an error.
    watched = sys.stderr.isatty()
    result = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True,
                            stderr=None if watched else subprocess.PIPE)
    if result.returncode != 0:
        sys.stderr.write(result.stderr or "")
        sys.exit("demo: `qevict run` failed with exit code %d" % result.returncode)
    return json.loads(result.stdout)


def mib(n_bytes):
    return "%.2f MiB" % (n_bytes / 2**20)


def percent(part, whole):
    return "%.1f %%" % (100.0 * part / whole) if whole else "-"


def rows(report, expected):
    """(label, text) of everything that is compared."""
    kv, timing = report["kv"], report["timing"]
    full = kv["full_cache_bytes"]
    windows = kv["windows"]
    median = timing["tpot_ms"]["median"]
    yield "answer", report["text"].strip()
    if expected:
        found = [fact for fact in expected if fact.lower() in report["text"].lower()]
        yield "facts found", "%d of %d" % (len(found), len(expected))
    yield "prompt, answer tokens", "%d, %d" % (report["prompt_tokens"], report["generated_tokens"])
    yield "KV cache at the end", "%s (%s)" % (mib(kv["resident_bytes"]),
                                             percent(kv["resident_bytes"], full))
    yield "KV cache at its peak", "%s (%s)" % (mib(kv["peak_resident_bytes"]),
                                              percent(kv["peak_resident_bytes"], full))
    yield "full cache would hold", mib(full)
    yield "windows a layer", "F %.0f, Q %.0f, evicted %.0f" % (
        windows["full"], windows["quantized"], windows["evicted"])
    yield "promotions", "%d" % kv["promotions"]
    yield "time to first token", "%.1f s" % (timing["ttft_ms"] / 1000.0)
    yield "decoding", "%.1f tok/s" % (1000.0 / median if median else 0.0)


def print_table(headers, columns):
    """Labels and one column a run; long texts wrap."""
    line = "-" * (LABEL_WIDTH + (COLUMN_WIDTH + 2) * len(columns))
    print(" " * LABEL_WIDTH + "".join("  " + h.ljust(COLUMN_WIDTH) for h in headers).rstrip())
    print(line)
    for cells in zip(*columns):
        wrapped = []
        for _, text in cells:
            lines = []
            for paragraph in text.split("\n"):
                lines += textwrap.wrap(paragraph, COLUMN_WIDTH) or [""]
            wrapped.append(lines)
        for number in range(max(len(lines) for lines in wrapped)):
            label = cells[0][0] if number == 0 else ""
            texts = [lines[number] if number < len(lines) else "" for lines in wrapped]
            print((label.ljust(LABEL_WIDTH) +
                   "".join("  " + text.ljust(COLUMN_WIDTH) for text in texts)).rstrip())
    print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("qevict", help="the program")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--document", default=os.path.join(ROOT, "demo", "document.txt"))
    parser.add_argument("--question", default=os.path.join(ROOT, "demo", "question.txt"))
    parser.add_argument("--kv-budget", default="0.1")
    parser.add_argument("--eviction-only", action="store_true",
                        help="a third run: the same bytes, but windows are kept or dropped")
    parser.add_argument("--predict", type=int, default=64, help="most tokens of an answer")
    options = parser.parse_args()

    document, question = read(options.document), read(options.question)
    own = os.path.join(ROOT, "demo")
    ours = (options.document == os.path.join(own, "document.txt") and
            options.question == os.path.join(own, "question.txt"))
    expected = json.loads(read(os.path.join(own, "expected.json"))) if ours else []

    budget = ["--policy", "qevict+", "--kv-budget", options.kv_budget]
    runs = [("full cache", ["--policy", "full"]),
            ("qevict+, budget " + options.kv_budget, budget)]
    if options.eviction_only:
        runs.append(("eviction only, " + options.kv_budget,
                     ["--policy", "qevict", "--quant-share", "0",
                      "--kv-budget", options.kv_budget]))
    with tempfile.TemporaryDirectory() as folder:
        prompt_file = os.path.join(folder, "prompt.txt")
        with open(prompt_file, "w", encoding="utf-8") as file:
            file.write(document + "\n\n" + question)
        reports = [run(options, prompt_file, arguments) for _, arguments in runs]
    print()
    print("document: %s (%d words)" % (os.path.relpath(options.document), len(document.split())))
    print("question: " + question)
    print()
    print_table([name for name, _ in runs], [list(rows(report, expected)) for report in reports])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit("demo: %s" % error)
