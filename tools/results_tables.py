#!/usr/bin/env python3
"""Makes the Markdown tables and the figure of docs/results from what the program wrote.

    qevict perplexity -f a.txt b.txt --own-answer 64 --kl --json ... > kl.jsonl
    qevict eval --tasks ... --out DIR                               (DIR/results.jsonl)

    tools/results_tables.py kl kl.jsonl                     KL of every policy and budget
    tools/results_tables.py kl --over qevict+ kl.jsonl      KL as multiples of qevict+'s
    tools/results_tables.py kl --prompts qevict,qevict+ kl.jsonl    each prompt by itself
    tools/results_tables.py tasks DIR                       scores, averaged over the tasks
    tools/results_tables.py tasks --minus qevict+ DIR       what the others score more or less
    tools/results_tables.py tasks --each 0.2 DIR            every task at a budget
    tools/results_tables.py figure out.svg kl.jsonl         KL over bytes held

A cell of a KL table holds the geometric mean of the prompts' mean KL per token, in nats, the share
of tokens with the full cache's most likely continuation, and the bytes held as a share of the full
cache's. Only prompts that all policies of the table have, full included, count. Ratios and
differences are paired, with the 95 % interval of a bootstrap (10,000 resamples, seed 1) over the
prompts, or over the samples of all tasks with every task weighing alike. Tasks that the full cache
cannot do (below 20 %, below 10 % where overlap is scored) stay out of averages. "!": more was held
than the budget.

A row that comes again replaces the one before: name a newer file later. The figure needs
matplotlib.
"""

import argparse
import math
import pathlib
import random
import signal
import statistics

from json_lines import fail, read_lines

RESAMPLES = 10_000


def figure_text(x):
    if x >= 100:
        return f"{x:.0f}"
    if x >= 1:
        return f"{x:.2f}"
    return f"{x:.{max(3, 1 - math.floor(math.log10(x)))}f}" if x > 0 else "0"


def multiple(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 1 else f"{x:.3f}"


def interval(values, weights=None):
    """Weighted mean of the values; low and high of the bootstrap over them."""
    pairs = list(zip(values, weights or [1.0] * len(values)))

    def mean(sample):
        return sum(v * w for v, w in sample) / sum(w for _, w in sample)

    rng = random.Random(1)
    draws = sorted(mean(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return mean(pairs), draws[RESAMPLES // 40], draws[RESAMPLES - 1 - RESAMPLES // 40]


def table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")


class Kl:
    """The lines of `qevict perplexity --kl --json`: {(policy, budget): {prompt: line}}."""

    def __init__(self, files, leave_out, budgets):
        self.rows = {}
        for name in files:
            for _, line in read_lines(name):
                if "kl_mean" not in line or line["policy"] in leave_out:
                    continue
                if budgets and line["budget"] not in budgets + ["1"]:
                    continue
                prompt = pathlib.PurePath(line["prompt"]).name
                self.rows.setdefault((line["policy"], line["budget"]), {})[prompt] = line
        self.full = next((cells for (policy, _), cells in self.rows.items() if policy == "full"),
                         None)
        if not self.full:
            fail("no lines of the full cache with a KL (--policies full,... --kl --json)")
        self.prompts = sorted(set.intersection(*(set(cells) for cells in self.rows.values())))
        if not self.prompts:
            fail("no prompt that all policies have")
        self.policies = list(dict.fromkeys(policy for policy, _ in self.rows))
        self.policies.remove("full")
        self.budgets = sorted({b for _, b in self.rows if b != "1"}, key=float)

    def fixed(self, policy):  # a quantiser: one size
        return (policy, "1") in self.rows

    def cell(self, policy, budget):
        return self.rows.get((policy, "1" if self.fixed(policy) else budget))

    def log_kl(self, policy, budget):
        # A KL of 0 (a cache that kept everything) counts as 1e-7: no prompt drops out of a pair.
        cell = self.cell(policy, budget)
        return [math.log(max(cell[p]["kl_mean"], 1e-7)) for p in self.prompts]

    def kl(self, policy, budget):
        return math.exp(statistics.fmean(self.log_kl(policy, budget)))

    def share(self, policy, budget):
        cell = self.cell(policy, budget)
        return statistics.fmean(cell[p]["kv_resident_bytes"] / self.full[p]["kv_resident_bytes"]
                                for p in self.prompts)

    def text(self, policy, budget):
        cell = self.cell(policy, budget)
        if cell is None:
            return "-"
        top = statistics.fmean(cell[p]["same_top1"] for p in self.prompts)
        return (f"{figure_text(self.kl(policy, budget))} "
                f"({100 * top:.0f} %, {100 * self.share(policy, budget):.1f} %)")

    def ratio(self, policy, reference, budget):
        if self.cell(policy, budget) is None or self.cell(reference, budget) is None:
            return "-"
        logs = [a - b for a, b in zip(self.log_kl(policy, budget), self.log_kl(reference, budget))]
        mean, low, high = (multiple(math.exp(x)) for x in interval(logs))
        return f"{mean} [{low}, {high}]"


def kl_command(args):
    kl = Kl(args.files, args.leave_out, args.budgets)
    tokens = [kl.full[p]["prompt_tokens"] for p in kl.prompts]
    print(f"{len(kl.prompts)} prompts, {min(tokens)} to {max(tokens)} tokens.\n")
    if args.prompts:
        names = args.prompts.split(",")
        table(["prompt", "tokens"] + kl.budgets,
              [[pathlib.PurePath(p).stem, str(kl.full[p]["prompt_tokens"])] +
               [", ".join(figure_text(kl.cell(n, b)[p]["kl_mean"]) for n in names)
                for b in kl.budgets] for p in kl.prompts])
        return
    if args.over:
        rows = []
        for policy in kl.policies:
            if policy != args.over:
                rows.append([policy] + [kl.ratio(policy, args.over, b) for b in kl.budgets])
        table([f"KL over {args.over}'s"] + [f"at {b}" for b in kl.budgets], rows)
        return
    table(["policy"] + [f"{b}: KL (same top-1, bytes)" for b in kl.budgets],
          [[p] + [kl.text(p, b) for b in kl.budgets] for p in kl.policies if not kl.fixed(p)])
    one_size = [p for p in kl.policies if kl.fixed(p)]
    if one_size:
        print()
        table(["one size", "KL (same top-1, bytes)"], [[p, kl.text(p, "1")] for p in one_size])


class Tasks:
    """The cells of `qevict eval`: {(policy, budget): {task: {id: cell}}}."""

    def __init__(self, sources, leave_out):
        self.rows = {}
        for source in sources:
            path = pathlib.Path(source)
            for _, cell in read_lines(path / "results.jsonl" if path.is_dir() else path):
                if cell["policy"] not in leave_out:
                    by_task = self.rows.setdefault((cell["policy"], cell["budget"]), {})
                    by_task.setdefault(cell["task"], {})[cell["id"]] = cell
        full = self.rows.get(("full", None))
        if full is None:
            fail("no cells of the full cache (--policies full,...)")
        # Only what all policies answered.
        self.samples = {}
        for task, cells in full.items():
            ids = set(cells)
            for by_task in self.rows.values():
                ids &= set(by_task.get(task, {}))
            if ids:
                self.samples[task] = sorted(ids)
        self.able = [t for t in self.samples if statistics.fmean(
            full[t][i]["score"] for i in self.samples[t]) >= self.least(full[t])]
        if not self.able:
            fail("no task that the full cache can do and all policies answered")
        self.policies = list(dict.fromkeys(policy for policy, _ in self.rows))
        self.budgets = sorted({b for _, b in self.rows if b is not None})

    @staticmethod
    def least(cells):  # as in summary.json (smallest_full_score)
        metric = next(iter(cells.values()))["metric"]
        return 0.1 if metric in ("f1", "rouge_l") else 0.2

    def score(self, key, task):
        return [self.rows[key][task][i]["score"] for i in self.samples[task]]

    def text(self, key):
        if key not in self.rows:
            return "-"
        cells = [self.rows[key][t][i] for t in self.able for i in self.samples[t]]
        mean = statistics.fmean(statistics.fmean(self.score(key, t)) for t in self.able)
        share = statistics.fmean(c["kv_resident_bytes"] / c["full_cache_bytes"] for c in cells)
        over = "!" if any(c["over_budget"] for c in cells) else ""
        return f"{mean:.3f} ({100 * share:.1f} %{over})"

    def minus(self, key, reference):
        if key not in self.rows or reference not in self.rows:
            return "-"
        pairs = [(a - b, 1.0 / len(self.samples[t])) for t in self.able
                 for a, b in zip(self.score(key, t), self.score(reference, t))]
        mean, low, high = interval(*zip(*pairs))
        return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def tasks_command(args):
    tasks = Tasks(args.sources, args.leave_out)
    print(", ".join(f"{t} ({len(tasks.samples[t])}{'' if t in tasks.able else ', left out'})"
                    for t in tasks.samples) + "\n")
    routed = [p for p in tasks.policies if (p, None) not in tasks.rows]
    one_size = [p for p in tasks.policies if (p, None) in tasks.rows]
    if args.each is not None:
        keys = [(p, None) for p in one_size] + [(p, args.each) for p in routed]
        names = [t.split(":")[-1] for t in tasks.samples]
        table([f"at {args.each}"] + names,
              [[key[0]] + [f"{statistics.fmean(tasks.score(key, t)):.2f}" for t in tasks.samples]
               for key in keys if key in tasks.rows])
        return
    if args.minus:
        table([f"minus {args.minus}"] + [f"at {b}" for b in tasks.budgets],
              [[p] + [tasks.minus((p, b), (args.minus, b)) for b in tasks.budgets]
               for p in routed if p != args.minus])
        return
    table(["policy"] + [f"{b}: score (bytes)" for b in tasks.budgets],
          [[p] + [tasks.text((p, b)) for b in tasks.budgets] for p in routed])
    print()
    table(["one size", "score (bytes)"], [[p, tasks.text((p, None))] for p in one_size])


def figure_command(args):
    try:
        import matplotlib
    except ImportError:
        fail("the figure needs matplotlib (pip install matplotlib)")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "qevict", "svg.fonttype": "none", "font.size": 9,
                                "font.family": "sans-serif"})
    from matplotlib import pyplot
    kl = Kl(args.files, args.leave_out, args.budgets)
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    loud = {"qevict+": "#c1121f", "qevict": "#003049"}
    ends = []  # of the lines: y, x, policy
    for policy in kl.policies:
        if kl.fixed(policy):
            x, y = 100 * kl.share(policy, "1"), kl.kl(policy, "1")
            axes.plot(x, y, "D", color="#2a9d8f", markersize=5)
            axes.annotate(policy, (x, y), textcoords="offset points", xytext=(6, 3))
            continue
        x = [100 * kl.share(policy, b) for b in kl.budgets]
        y = [kl.kl(policy, b) for b in kl.budgets]
        known = policy in loud
        axes.plot(x, y, "o-", color=loud.get(policy, "#b5b5b5"), linewidth=2 if known else 1,
                  markersize=5 if known else 3, zorder=3 if known else 1)
        ends.append((y[-1], x[-1], policy))
    label_y = 0.0
    for y, x, policy in sorted(ends):
        label_y = max(y, 1.22 * label_y)  # names of neighbours stay apart
        axes.annotate(policy, (x, y), xytext=(1.12 * max(x, 40), label_y), va="center",
                      color=loud.get(policy, "#707070"), fontsize=9 if policy in loud else 6,
                      arrowprops={"arrowstyle": "-", "color": "#d0d0d0", "linewidth": 0.5})
    axes.set(xscale="log", yscale="log", xlabel="bytes held, % of the fp16 cache",
             ylabel="KL from the full cache, nats a token")
    ticks = [5, 10, 20, 40]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(right=70)
    axes.grid(alpha=0.25)
    figure.savefig(args.out, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(name, run):
        sub = commands.add_parser(name)
        sub.set_defaults(run=run)
        sub.add_argument("--leave-out", action="append", default=[], metavar="POLICY",
                         help="without this policy")
        return sub

    kl = command("kl", kl_command)
    kl.add_argument("files", nargs="+")
    kl.add_argument("--budgets", type=lambda text: text.split(","), metavar="B,...")
    kl.add_argument("--over", metavar="POLICY")
    kl.add_argument("--prompts", metavar="POLICY,...")
    tasks = command("tasks", tasks_command)
    tasks.add_argument("sources", nargs="+")
    tasks.add_argument("--minus", metavar="POLICY")
    tasks.add_argument("--each", type=float, metavar="BUDGET")
    figure = command("figure", figure_command)
    figure.add_argument("out")
    figure.add_argument("files", nargs="+")
    figure.add_argument("--budgets", type=lambda text: text.split(","), metavar="B,...")
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # | head
    args.run(args)


if __name__ == "__main__":
    main()
