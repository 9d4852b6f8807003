"""The network in PyTorch: the `llama` architecture, with RoPE on neighbouring channels."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import words

N_LAYERS, WIDTH, N_HEADS, N_KV_HEADS, HEAD_DIM, N_FF = 3, 128, 4, 2, 64, 256
ROPE_BASE, RMS_EPS = 1e6, 1e-5
GROUP = N_HEADS // N_KV_HEADS


def rope_tables(positions):
    """cos, sin [batch, 1, tokens, HEAD_DIM / 2]"""
    inverse = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angle = positions.double()[:, None, :, None] * inverse
    return angle.cos().float(), angle.sin().float()


def rope(x, tables):
    cos, sin = tables
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPS) * self.weight


def matrix(n_in, n_out, gain=1.0):
    m = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(m.weight, std=gain / math.sqrt(n_in))
    return m


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = Norm(), Norm()
        self.q = matrix(WIDTH, N_HEADS * HEAD_DIM)
        self.k = matrix(WIDTH, N_KV_HEADS * HEAD_DIM)
        self.v = matrix(WIDTH, N_KV_HEADS * HEAD_DIM)
        self.o = matrix(N_HEADS * HEAD_DIM, WIDTH, 0.1)
        self.gate, self.up = matrix(WIDTH, N_FF), matrix(WIDTH, N_FF)
        self.down = matrix(N_FF, WIDTH, 0.1)

    def forward(self, x, tables, adapt=None):
        """adapt: changes k (before RoPE) and v, for tests of precision."""
        b, t, _ = x.shape
        h = self.attention_norm(x)
        q = rope(self.q(h).view(b, t, N_HEADS, HEAD_DIM).transpose(1, 2), tables)
        k = self.k(h).view(b, t, N_KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.v(h).view(b, t, N_KV_HEADS, HEAD_DIM).transpose(1, 2)
        if adapt is not None:
            k, v = adapt(k, v)
        k = rope(k, tables)
        a = F.scaled_dot_product_attention(q, k.repeat_interleave(GROUP, 1),
                                           v.repeat_interleave(GROUP, 1), is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), q, k


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(words.N_VOCAB, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(N_LAYERS))
        self.norm = Norm()
        last = self.layers[-1]
        with torch.no_grad():  # each head of the last layer starts as a copier
            v = last.v.weight.view(N_KV_HEADS, HEAD_DIM, WIDTH)
            heads = [0.5 * v[h // GROUP].T for h in range(N_HEADS)]
            last.o.weight.copy_(torch.cat(heads, dim=1))

    def forward(self, ids, positions, adapt=None):
        """hidden [batch, tokens, WIDTH] after the last norm, hidden after layer 0, q and k of the
        last layer"""
        tables = rope_tables(positions)
        x = self.embedding(ids)
        first = None
        for i, layer in enumerate(self.layers):
            x, q, k = layer(x, tables, adapt)
            first = x if i == 0 else first
        return self.norm(x), first, q, k

    def logits(self, hidden):
        return hidden @ self.embedding.weight.T
