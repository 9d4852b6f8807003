#!/usr/bin/env python3
"""Compares the metrics (src/eval/metrics.cpp) with the Python originals.

  python3 -m venv venv && venv/bin/pip install rouge
  venv/bin/python tools/compare_metrics.py build/release/bin/eval_test [TEXT.jsonl ...]

ROUGE-L comes from the package `rouge`, which LongBench uses; F1 and classification follow
LongBench's definitions. Pairs are random texts, and sentences of the "answers" and "context" fields
of the files named (LongBench's, say). eval_test then checks its own values against all of them.
"""

import argparse
import collections
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile

try:
    from rouge import Rouge
except ImportError:
    sys.exit("compare_metrics: the package rouge is missing: pip install rouge")

CLASSES = ["Number", "Number of something", "City", "Country", "Date", "Other number", "Other"]
WORDS = ["the", "a", "An", "cat", "Cat", "dog's", "ran", "to", "x-ray", "$5", "1,000", "No.", ".",
         "...", "\u00e9a", "\u2014", "a\u2014b", "\u00c4rger", "\u00a0", "\n", "\t", "U.S.",
         "\u4e2d\u6587", "\u0410\u0411", "the_", "City", "Country", "Number of something", "Other"]


def normalise(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(prediction, answer):
    prediction, answer = normalise(prediction), normalise(answer)
    same = sum((collections.Counter(prediction) & collections.Counter(answer)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(answer)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction, answer):
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except ValueError:  # no sentences
        return 0.0


def classification(prediction, answer):
    named = [name for name in CLASSES if name in prediction]
    named = [name for name in named if not (name in answer and name != answer)]
    return 1.0 / len(named) if answer in named else 0.0


def random_text(rng):
    return rng.choice([" ", " ", "  "]).join(rng.choice(WORDS) for _ in range(rng.randint(0, 40)))


def random_pairs(rng, count):
    for _ in range(count):
        yield random_text(rng), random_text(rng)
    for _ in range(count // 10):
        yield rng.choice(CLASSES) + rng.choice(["", " ", " or " + rng.choice(CLASSES)]), \
            rng.choice(CLASSES)


def real_pairs(rng, paths, count):
    """An answer beside a part of the text it is about, and beside another answer."""
    answers, pieces = [], []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                # The package recurses as deep as two sentences are long.
                sentences = [s for s in record.get("context", "").split(".") if len(s) < 1500]
                start = rng.randint(0, max(0, len(sentences) - 12))
                answers += [a[:4000] for a in record.get("answers", [])]
                pieces.append(".".join(sentences[start:start + 12]))
    for _ in range(count if answers else 0):
        yield rng.choice(pieces + answers), rng.choice(answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("eval_test", help="the test program")
    parser.add_argument("files", nargs="*", help="JSON lines with answers and context")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    pairs = list(random_pairs(rng, args.pairs)) + list(real_pairs(rng, args.files, args.pairs))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pairs.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for prediction, answer in pairs:
                file.write(json.dumps({
                    "prediction": prediction, "answer": answer, "classes": CLASSES,
                    "rouge_l": rouge_l(prediction, answer), "f1": f1(prediction, answer),
                    "classification": classification(prediction, answer)}) + "\n")
        print("%d pairs" % len(pairs))
        return subprocess.run([args.eval_test, "--gtest_filter=MetricsReference.*"], check=False,
                              env=dict(os.environ, QEVICT_METRIC_PAIRS=path)).returncode


if __name__ == "__main__":
    sys.exit(main())
