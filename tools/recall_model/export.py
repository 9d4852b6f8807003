#!/usr/bin/env python3
"""Writes trained weights as a GGUF file of the `llama` architecture."""

import argparse

import gguf
import numpy as np
import torch
from gguf.quants import quantize

import network
import words

FORMATS = {"q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
           "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16)}
CONTEXT = 8192
DESCRIPTION = (
    "Synthetic recall model: trained from scratch on random word lists to repeat the two code words "
    "of a key stated anywhere in its context. A detector of regressions in KV cache compression; it "
    "says nothing about language models. Made by tools/recall_model/train.py of the qevict project.")


def write_vocabulary(out):
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("llama-bpe")  # whole words of the vocabulary are taken without merges
    types = [gguf.TokenType.CONTROL] * len(words.SPECIAL)
    types += [gguf.TokenType.NORMAL] * (words.N_VOCAB - len(types))
    out.add_token_list(words.VOCABULARY)
    out.add_token_types(types)
    out.add_token_merges(["\u0120 .", "\u0120 ?"])
    out.add_bos_token_id(words.BEGIN)
    out.add_eos_token_id(words.END)
    out.add_add_bos_token(True)


def write_shape(out, file_type):
    out.add_name("qevict recall")
    out.add_author("The qevict authors")
    out.add_license("Apache-2.0")
    out.add_description(DESCRIPTION)
    out.add_file_type(file_type)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(network.WIDTH)
    out.add_block_count(network.N_LAYERS)
    out.add_feed_forward_length(network.N_FF)
    out.add_head_count(network.N_HEADS)
    out.add_head_count_kv(network.N_KV_HEADS)
    out.add_key_length(network.HEAD_DIM)
    out.add_value_length(network.HEAD_DIM)
    out.add_rope_dimension_count(network.HEAD_DIM)
    out.add_rope_freq_base(network.ROPE_BASE)
    out.add_layer_norm_rms_eps(network.RMS_EPS)
    out.add_vocab_size(words.N_VOCAB)


def tensors(weights):
    """(name in GGUF, array); RoPE already pairs neighbouring channels as `llama` files do."""
    yield "token_embd.weight", weights["embedding.weight"]
    yield "output_norm.weight", weights["norm.weight"]
    names = {"attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "q": "attn_q", "k": "attn_k",
             "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
             "down": "ffn_down"}
    for i in range(network.N_LAYERS):
        for ours, theirs in names.items():
            yield "blk.%d.%s.weight" % (i, theirs), weights["layers.%d.%s.weight" % (i, ours)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", help="what train.py saved")
    parser.add_argument("--out", default="recall.gguf")
    parser.add_argument("--type", choices=FORMATS, default="q8_0")
    options = parser.parse_args()
    tensor_type, file_type = FORMATS[options.type]
    out = gguf.GGUFWriter(options.out, "llama")
    write_shape(out, file_type)
    write_vocabulary(out)
    weights = torch.load(options.weights, map_location="cpu", weights_only=True)
    for name, tensor in tensors(weights):
        array = tensor.numpy().astype(np.float32)
        if array.ndim == 1:
            out.add_tensor(name, array)
        else:
            out.add_tensor(name, quantize(array, tensor_type), raw_dtype=tensor_type)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
