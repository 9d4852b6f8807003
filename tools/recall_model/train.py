#!/usr/bin/env python3
"""Trains the recall model on one CPU thread and saves its weights (see README.md)."""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F

import network
import task
import words

STAGES = [(64, True), (64, False), (128, False), (256, False), (512, False), (1024, False),
          (2048, False)]
TOKENS_PER_STEP = 2048
STAGE_DONE = 0.93
AUXILIARY_DONE = 0.9
AUXILIARY_WEIGHT = 0.5
TAUGHT_HEADS = [0, 2]  # of the last layer: one a KV head


class Readout(torch.nn.Module):
    """Auxiliary: after layer 0, which were the previous token and the one before? Asked where both
    stand right before, not beyond a jump of the positions."""

    def __init__(self):
        super().__init__()
        self.norm = network.Norm()
        self.linear = torch.nn.Linear(network.WIDTH, 2 * words.N_WORDS)

    def loss(self, first, ids, positions):
        near = positions[:, 2:] - positions[:, :-2] == 2
        one, two = self.linear(self.norm(first[:, 2:][near])).split(words.N_WORDS, dim=1)
        return (F.cross_entropy(one, ids[:, 1:-1][near]) + F.cross_entropy(two, ids[:, :-2][near]))


def attention_loss(q, k, rows, answers, sources):
    """Auxiliary: the taught heads of the last layer look at the value in the fact."""
    t = k.shape[2]
    future = torch.arange(t)[None, :] > answers[:, None]
    total = 0.0
    for head in TAUGHT_HEADS:
        query = q[rows, head, answers]
        keys = k[:, head // network.GROUP]
        scores = torch.cat([query[rows == r] @ keys[r].T for r in range(k.shape[0])])
        scores = (scores / network.HEAD_DIM**0.5).masked_fill(future, float("-inf"))
        total = total + F.cross_entropy(scores, sources)
    return total / len(TAUGHT_HEADS)


def learning_rate(step, options):
    warm = min(1.0, (step + 1) / 50)
    late = (step / options.steps - 0.6) / 0.4
    return options.lr * warm * (1.0 if late <= 0 else max(0.02, 1.0 - late))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="recall.pt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    net, readout = network.Network(), Readout()
    parameters = list(net.parameters()) + list(readout.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, betas=(0.9, 0.98))
    stage, moving, auxiliary, began = 0, 0.0, True, time.time()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        length, easy = STAGES[stage]
        ids, positions, rows, answers, sources = (
            torch.from_numpy(x) for x in task.batch(rng, TOKENS_PER_STEP // length, length, easy))
        hidden, first, q, k = net(ids, positions)
        logits = net.logits(hidden[rows, answers])
        wanted = ids[rows, answers + 1]
        answer_loss = F.cross_entropy(logits, wanted)
        loss = answer_loss
        if auxiliary:
            loss = loss + AUXILIARY_WEIGHT * readout.loss(first, ids, positions)
            loss = loss + AUXILIARY_WEIGHT * attention_loss(q, k, rows, answers, sources)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        accuracy = (logits.argmax(-1) == wanted).float().mean().item()
        moving = 0.9 * moving + 0.1 * accuracy
        if step % 25 == 0:
            print("step %4d  length %4d  loss %.3f  total %.3f  accuracy %.3f  %4.0f s" %
                  (step, length, answer_loss.item(), loss.item(), moving, time.time() - began),
                  flush=True)
        if stage + 1 < len(STAGES):
            if moving > STAGE_DONE:
                stage, moving = stage + 1, 0.0
                torch.save(net.state_dict(), options.out)
        elif auxiliary and moving > AUXILIARY_DONE:
            auxiliary = False
            print("step %4d  auxiliary losses off" % step, flush=True)
    torch.save(net.state_dict(), options.out)
    print("saved %s after %.0f s, %.0f s of CPU" %
          (options.out, time.time() - began, time.process_time()))


if __name__ == "__main__":
    main()
