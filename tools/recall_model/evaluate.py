#!/usr/bin/env python3
"""Accuracy of trained weights in PyTorch: by length, and with K and V of every token quantised."""

import argparse

import numpy as np
import torch

import network
import task


def grid(x, axis, bits):
    """Asymmetric codes along one axis, as the engine's quantiser makes them."""
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    levels = 2**bits - 1
    scale = torch.where(high > low, (high - low) / levels, torch.ones_like(low)).half().float()
    zero = low.half().float()
    return ((x - zero) / scale).round().clamp(0, levels) * scale + zero


def quantiser(bits, window=8):
    def adapt(k, v):
        b, h, t, d = k.shape
        n = t // window * window
        blocks = k[:, :, :n].reshape(b, h, n // window, window, d)
        k = torch.cat([grid(blocks, 3, bits).reshape(b, h, n, d), k[:, :, n:]], dim=2)
        return k, grid(v, 3, bits)
    return adapt


def accuracy(net, length, dense, filler, n_sequences, seed, adapt=None, n_questions=16):
    """Share of questions with both words right."""
    rng = np.random.default_rng(seed)
    right = total = 0
    for _ in range(n_sequences):
        ids, answers, _, _ = task.sequence(rng, length, dense, filler, n_questions=n_questions)
        ids = torch.tensor([ids])
        positions = torch.arange(length)[None]
        with torch.no_grad():
            logits = net.logits(net(ids, positions, adapt)[0][0, answers])
        hit = (logits.argmax(-1) == ids[0, torch.tensor(answers) + 1]).view(-1, 2).all(1)
        right += int(hit.sum())
        total += len(hit)
    return right / total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", help="what train.py saved")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = network.Network()
    net.load_state_dict(torch.load(options.weights, weights_only=True))
    print("length   facts  dense  filler .5   (fp32, %d questions a cell)" %
          (16 * options.sequences))
    for length in (512, 1024, 2048, 4096):
        cells = [accuracy(net, length, dense, filler, options.sequences, options.seed)
                 for dense, filler in ((False, 0.0), (True, 0.0), (False, 0.5))]
        print("%6d   %.3f  %.3f  %.3f" % (length, *cells), flush=True)
    print("bits     facts  dense   (length 512)")
    for bits in (8, 4, 3, 2, 1):
        cells = [accuracy(net, 512, dense, 0.0, options.sequences, options.seed, quantiser(bits))
                 for dense in (False, True)]
        print("%6d   %.3f  %.3f" % (bits, *cells), flush=True)


if __name__ == "__main__":
    main()
