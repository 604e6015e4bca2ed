"""Small language models with random weights, of architectures besides the tiny model's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

KINDS = ["qwen2", "gpt2"]


def make_model(kind: str, folder: Path, scalar: bool = False) -> str:
    """A folder with a small model of random weights and the tiny tokenizer."""
    import transformers

    from manyseeds.llm_track import models

    tokenizer = models.tiny_tokenizer()
    shared = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    shared |= {"initializer_range": 0.2, "bos_token_id": None}
    shared |= {"pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    if kind == "llama":
        config = models.tiny_config(tokenizer)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=128, **shared)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.Qwen2Config(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            **shared,
        )
        if scalar:
            config.num_labels = 1
            model = transformers.Qwen2ForSequenceClassification(config)
        else:
            model = transformers.Qwen2ForCausalLM(config)
    models.save(model, tokenizer, folder)
    return str(folder)


def digest(model: Any) -> str:
    """A short digest of a model's weights."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]
