"""Training and test sequences of the recall task.

A fact is `the code of K V1 V2 .` (dense form: `K V1 V2 .`), a question `? K V1 V2 .`; filler words
stand between facts. Every key occurs in one fact and at most one question.
"""

import numpy as np

import words as w

QUESTION_TOKENS = 5


def _fact(key, values, dense):
    fact = [w.FIRST_KEY + key, w.FIRST_VALUE + values[0], w.FIRST_VALUE + values[1], w.STOP]
    return fact if dense else [w.THE, w.CODE, w.OF] + fact


def _spread(rng, total, n_gaps):
    """How many filler words each gap gets: all gaps, or a few long runs."""
    if rng.random() < 0.5:
        chosen = rng.integers(0, n_gaps, size=max(1, int(rng.integers(1, n_gaps + 1))))
    else:
        chosen = np.arange(n_gaps)
    return np.bincount(rng.choice(chosen, size=total), minlength=n_gaps)


def sequence(rng, length, dense, filler_share, question_share=0.35, n_questions=None):
    """One sequence. Returns ids [length], answers: positions whose next token is an answer [2q],
    sources: where in the fact that next token stands [2q], starts: first token of every record."""
    if n_questions is None:
        n_questions = max(1, int(question_share * length / QUESTION_TOKENS))
    fact_tokens = 4 if dense else 7
    body = length - 1 - QUESTION_TOKENS * n_questions
    n_facts = max(1, min(w.N_KEYS, int((1.0 - filler_share) * body / fact_tokens)))
    if n_questions > n_facts:  # more filler instead
        body += QUESTION_TOKENS * (n_questions - n_facts)
        n_questions = n_facts
    keys = rng.permutation(w.N_KEYS)[:n_facts]
    values = rng.integers(0, w.N_VALUES, size=(n_facts, 2))
    gaps = _spread(rng, body - n_facts * fact_tokens, n_facts + 1)
    ids, starts, place = [w.BEGIN], [], {}
    for i in range(n_facts + 1):
        if gaps[i] > 0:
            starts.append(len(ids))
        for _ in range(gaps[i]):
            ids.append(w.FIRST_FILLER + int(rng.integers(w.N_FILLER)))
        if i < n_facts:
            starts.append(len(ids))
            ids += _fact(int(keys[i]), values[i], dense)
            place[i] = len(ids) - 3  # of the first value
    answers, sources = [], []
    for i in rng.permutation(n_facts)[:n_questions]:
        starts.append(len(ids))
        ids += [w.ASK] + _fact(int(keys[i]), values[i], True)
        answers += [len(ids) - 4, len(ids) - 3]
        sources += [place[int(i)], place[int(i)] + 1]
    assert len(ids) == length
    return ids, answers, sources, starts


def stretched_positions(rng, length, starts, longest):
    """Positions with steps of 1 inside a record and random jumps between records."""
    span = np.exp(rng.uniform(np.log(length), np.log(max(longest, length + 1))))
    extra = int(span) - length
    steps = np.ones(length, dtype=np.int64)
    steps[0] = 0
    share = rng.exponential(size=len(starts))
    steps[starts] += np.floor(extra * share / share.sum()).astype(np.int64)
    return np.cumsum(steps)


def batch(rng, n, length, easy=False, longest=9000):
    """n sequences: ids, positions [n, length]; rows, answers, sources [a] (indices of answers)."""
    ids, positions, rows, answers, sources = [], [], [], [], []
    for row in range(n):
        dense = easy or rng.random() < 0.3
        share = 0.0 if easy else rng.uniform(0.0, 0.8)
        s, a, f, starts = sequence(rng, length, dense, share)
        ids.append(s)
        positions.append(stretched_positions(rng, length, starts, longest))
        rows += [row] * len(a)
        answers += a
        sources += f
    return tuple(np.array(x) for x in (ids, positions, rows, answers, sources))
