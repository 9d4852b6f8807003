#!/usr/bin/env python3
"""Makes one Markdown table of what policies lose of the full cache's attention.

Reads the lines of JSON that these write (a file each, or - for the standard input):

    qevict perplexity -f a.txt b.txt --own-answer 128 --diagnostics --json [--policies ...] > d.jsonl
    qevict eval ... --diagnostics --out DIR        (DIR/diagnostics.jsonl)
    tools/diagnostics_table.py d.jsonl DIR/diagnostics.jsonl

A row is a policy and a budget. Of several prompts it holds the means of what is defined, the spells
of all prompts together for LIR, the median of the prompts' medians for TTR, and the worst head of
any prompt. "-": not defined (no Quantized tier, no event with a full horizon, nothing revived).
docs/diagnostics.md says what the values are.
"""

import argparse
import statistics

from json_lines import fail, read_lines

COLUMNS = ["policy", "budget", "prompts", "FMM_32 %", "FMM full horizon %", "churn", "QSA",
           "QSA worst head", "RQ", "RQ fidelity", "LIR(3) policy / oracle %",
           "TTR policy / oracle", "mass F / Q / E / local %", "promotions", "KL"]


def diagnosed_runs(name):
    for number, run in read_lines(name):
        if not isinstance(run, dict) or "fmm" not in run or "lir" not in run:
            fail(f"{name}, line {number}: no diagnostics (--diagnostics --json writes them)")
        yield run


def defined(runs, *path):
    values = []
    for run in runs:
        for key in path:
            run = None if run is None else run.get(key)
        if run is not None:
            values.append(run)
    return values


def number(values, digits, scale=1.0, combine=statistics.fmean):
    return f"{scale * combine(values):.{digits}f}" if values else "-"


def percent(runs, *path):
    return number(defined(runs, *path), 1, 100.0)


def loss_in_revival(runs, whose, m):
    eligible = sum(defined(runs, "lir", whose, m, "eligible"))
    rescued = sum(defined(runs, "lir", whose, m, "rescued"))
    return f"{100.0 * rescued / eligible:.2f}" if eligible else "-"


def both(cell):
    return " / ".join(cell(whose) for whose in ("policy", "oracle"))


def main_row(name, budget, runs, m):
    tiers = ("cum_full", "cum_quantized", "cum_evicted", "cum_local")
    return [
        name, budget, str(len(runs)), percent(runs, "fmm"), percent(runs, "fmm_full_horizon"),
        number(defined(runs, "churn"), 4), number(defined(runs, "qsa"), 4),
        number(defined(runs, "qsa_worst_head"), 4, combine=min),
        number(defined(runs, "rq"), 3), number(defined(runs, "rq_fidelity"), 3),
        both(lambda whose: loss_in_revival(runs, whose, m)),
        both(lambda whose: number(defined(runs, "lir", whose, m, "ttr_median"), 1,
                                  combine=statistics.median)),
        " / ".join(percent(runs, tier) for tier in tiers),
        number(defined(runs, "promotions"), 0), number(defined(runs, "kl_mean"), 4)]


# The same sets of windows, had Quantized been out of reach: only what is missed changes.
def full_tier_row(name, budget, runs):
    row = [f"{name}, Full tier only", budget, str(len(runs)),
           percent(runs, "full_tier_only", "fmm"),
           percent(runs, "full_tier_only", "fmm_full_horizon")]
    return row + ["-"] * (len(COLUMNS) - len(row))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="lines of JSON; -: the standard input")
    parser.add_argument("--spell", type=int, default=3, choices=[1, 2, 3, 4], metavar="M",
                        help="LIR and TTR of spells of at least M events [3]")
    arguments = parser.parse_args()
    COLUMNS[10] = f"LIR({arguments.spell}) policy / oracle %"

    groups = {}
    for name in arguments.files:
        for run in diagnosed_runs(name):
            groups.setdefault((run["name"], str(run["budget"])), []).append(run)
    if not groups:
        fail("no line in any file")
    rows = [COLUMNS, ["---"] * 3 + ["---:"] * (len(COLUMNS) - 3)]
    for (name, budget), runs in groups.items():
        rows.append(main_row(name, budget, runs, f"m{arguments.spell}"))
        seen = [run for run in runs if run.get("full_tier_only")]
        if seen:
            rows.append(full_tier_row(name, budget, seen))
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
