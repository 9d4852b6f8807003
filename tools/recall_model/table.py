#!/usr/bin/env python3
"""Prints the accuracy table of the README from `qevict demo --json`."""

import argparse
import json
import subprocess

CACHES = [
    ("full cache", "full"),
    ("INT4 everywhere", "qevict:kv_budget=0.95,quant_share=1,quant_bits=4"),
    ("INT2 everywhere", "qevict:kv_budget=0.95,quant_share=1"),
    ("eviction only, 50 %", "qevict:kv_budget=0.5,quant_share=0"),
    ("eviction only, 20 %", "qevict:kv_budget=0.2,quant_share=0"),
    ("qevict, 20 %", "qevict:kv_budget=0.2"),
    ("eviction only, 10 %", "qevict:kv_budget=0.1,quant_share=0"),
    ("qevict, 10 %", "qevict:kv_budget=0.1"),
]
SHAPES = [("512 dense", ["--tokens", "512", "--dense", "--filler", "0"]),
          ("512 facts", ["--tokens", "512", "--filler", "0"])]
SHAPES += [("%d" % n, ["--tokens", str(n)]) for n in (512, 1024, 2048, 4096)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("qevict", help="the program")
    parser.add_argument("--model", default="", help="a GGUF file [the built-in model]")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    columns = []
    for _, shape in SHAPES:
        command = [options.qevict, "demo", "--json", "-q", "--seed", str(options.seed),
                   "--questions", str(options.questions)] + shape
        command += ["-m", options.model] if options.model else []
        for _, policy in CACHES:
            command += ["--policy", policy]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        columns.append([row["accuracy"] for row in json.loads(result.stdout)["rows"]])
    print("| cache | " + " | ".join(name for name, _ in SHAPES) + " |")
    print("|---|" + "---|" * len(SHAPES))
    for i, (name, _) in enumerate(CACHES):
        print("| %s | " % name + " | ".join("%.3f" % column[i] for column in columns) + " |")


if __name__ == "__main__":
    main()
