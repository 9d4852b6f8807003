#!/usr/bin/env python3
"""Counts the instructions of each hot kernel with callgrind and compares with bench/instructions.json.

A count does not depend on the machine's load, so it shows small regressions that no clock here would.
It depends on the compiler: with another one than the recorded, differences are reported but do not
fail. callgrind decodes no AVX-512; reference, SSE4 and AVX2 are counted.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORD = os.path.join(ROOT, "bench", "instructions.json")
TOLERANCE = 0.02


def count(program, isa, kernel):
    """Instructions of one call of `kernel`."""
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         "--toggle-collect=qevict_measured", program, isa, kernel],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    match = re.search(r"Collected : (\d+)", run.stdout)
    if run.returncode != 0 or not match or int(match.group(1)) == 0:
        raise RuntimeError("%s/%s: no count:\n%s" % (isa, kernel, run.stdout[-2000:]))
    return int(match.group(1))


def measure(program, kernels, jobs):
    """{isa: {kernel: instructions}}, in the listed order."""
    counts = {isa: {} for isa in kernels}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        pending = [(isa, name, pool.submit(count, program, isa, name))
                   for isa, names in kernels.items() for name in names]
        for isa, name, result in pending:
            counts[isa][name] = result.result()
    return counts


def compare(counts, recorded):
    """Prints a table; returns the number of kernels that left the tolerance."""
    changed = 0
    for isa, kernels in counts.items():
        for name, now in kernels.items():
            before = recorded.get(isa, {}).get(name)
            if before is None:
                print("%-10s %-24s %12d   new" % (isa, name, now))
                changed += 1
                continue
            ratio = now / before
            note = ""
            if abs(ratio - 1) > TOLERANCE:
                note = "  MORE" if ratio > 1 else "  fewer"
                changed += 1
            print("%-10s %-24s %12d   %+6.2f %%%s" % (isa, name, now, 100 * (ratio - 1), note))
    for isa, kernels in recorded.items():
        for name in kernels:
            if name not in counts.get(isa, {}):
                print("%-10s %-24s %12s   gone" % (isa, name, "-"))
                changed += 1
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="kernel_instructions")
    parser.add_argument("--update", action="store_true", help="record what was counted")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    listing = json.loads(subprocess.check_output([args.program, "--list"], text=True))
    counts = measure(args.program, listing["kernels"], args.jobs)
    recorded = {}
    if os.path.exists(RECORD):
        with open(RECORD, encoding="utf-8") as file:
            recorded = json.load(file)
    changed = compare(counts, recorded.get("instructions", {}))
    if args.update:
        with open(RECORD, "w", encoding="utf-8") as file:
            json.dump({"compiler": listing["compiler"], "instructions": counts}, file, indent=1)
            file.write("\n")
        print("recorded in bench/instructions.json")
        return 0
    if not recorded:
        print("nothing is recorded yet: ./dev instructions --update")
        return 0
    if changed == 0:
        print("all within %g %%" % (100 * TOLERANCE))
        return 0
    print("%d kernels left the tolerance of %g %%: explain it, then ./dev instructions --update"
          % (changed, 100 * TOLERANCE))
    if recorded["compiler"] != listing["compiler"]:
        print("recorded with another compiler (%s, here %s): not counted as a failure"
              % (recorded["compiler"], listing["compiler"]))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
