#!/usr/bin/env python3
"""Fails on an include that goes against the layers (docs/architecture.md).

Data flows down: a layer may include base, the public headers (include/qevict), itself and what
ALLOWED lists. Third-party code is confined too: ggml and llama.cpp to model, Highway to kernels.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Layer -> layers (a name) or single headers (a path) that it may include.
ALLOWED = {
    "base": set(),
    "kernels": set(),
    "kv": {"kernels"},
    "attention": {"kv", "kernels"},
    "policies": {"kv/types.h", "kv/policy.h", "kv/prompt_view.h", "kv/budget.h",
                 "kv/codecs.h", "kv/row_codec.h"},
    "model": {"attention/attention.h", "kernels/rope.h", "kernels/geometry.h"},
    "engine": {"model", "attention", "policies", "kv"},
    "eval": {"engine", "policies", "kv/types.h", "attention/mass_observer.h"},
    "server": {"engine"},
    "cli": {"server", "eval", "engine", "model", "attention", "policies", "kv", "kernels"},
}
# Prefix of a third-party include -> layers that may use it. Tests may compare with libllama.
CONFINED = [
    (re.compile(r"^(ggml|gguf|llama)[\w-]*\.h$"), {"model"}),
    (re.compile(r"^hwy/"), {"kernels"}),
    (re.compile(r"^CLI/"), {"cli"}),
    (re.compile(r"^fmt/"), {"base", "engine", "eval", "server", "cli"}),
]
# What only the tests beside the sources may include as well: a cache needs some policy.
TEST_ONLY = {
    "kv": {"policies/registry.h"},
    "attention": {"policies/registry.h"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def check_file(relative, layer):
    """Yields one message for each include of a file that its layer may not have."""
    is_test = relative.endswith(("_test.cpp", "_test.h")) or relative.startswith("tests/")
    with open(os.path.join(ROOT, relative), encoding="utf-8") as source:
        lines = source.readlines()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        path = match.group(2)
        target = path.split("/")[0]
        for pattern, layers in CONFINED:
            if pattern.match(path) and layer not in layers and not is_test:
                yield "%s:%d: %s belongs in %s only" % (relative, number, path,
                                                        ", ".join(sorted(layers)))
        if layer == "public":
            if target in ALLOWED and "/" in path:
                yield "%s:%d: a public header may not include %s" % (relative, number, path)
            continue
        if layer == "tests" or match.group(1) == "<" or "/" not in path or target == "qevict":
            continue
        if target not in ALLOWED:
            continue
        if target in (layer, "base") or {target, path} & ALLOWED[layer]:
            continue
        if is_test and path in TEST_ONLY.get(layer, set()):
            continue
        yield "%s:%d: %s may not include %s" % (relative, number, layer, path)


def files_and_layers():
    for top in ("src", "include", "tests"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    continue
                relative = os.path.relpath(os.path.join(folder, name), ROOT)
                layer = {"include": "public", "tests": "tests"}.get(top)
                yield relative, layer or relative.split(os.sep)[1]


def main():
    problems = []
    count = 0
    for relative, layer in files_and_layers():
        count += 1
        if layer not in ALLOWED and layer not in ("public", "tests"):
            problems.append("%s: unknown layer '%s': add it to tools/check_layers.py"
                            % (relative, layer))
            continue
        problems.extend(check_file(relative, layer))
    for problem in problems:
        print(problem)
    print("check_layers: %d files, %d problems" % (count, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
