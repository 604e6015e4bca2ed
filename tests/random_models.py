"""Small language models with random weights, of architectures besides the tiny model's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

KINDS = ["qwen2", "gpt2"]


def new_model(kind: str, scale: float = 0.2, layers: int = 1) -> Any:
    """A small model of random weights, of this standard deviation, over the tiny vocabulary.

    A reward model is a Qwen2.
    """
    import transformers

    from manyseeds.llm_track import models

    tokenizer = models.tiny_tokenizer()
    shared = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    shared |= {"initializer_range": scale, "bos_token_id": None}
    shared |= {"pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    if kind == "tiny":  # as it is before any training
        return transformers.LlamaForCausalLM(models.tiny_config(tokenizer))
    if kind == "gpt2":
        shared |= {"n_layer": layers, "n_embd": 32, "n_head": 2, "n_positions": 128}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shared))
    shared |= {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 128}
    shared |= {"num_hidden_layers": layers, "num_attention_heads": 2}
    if kind == "roberta":
        config = transformers.RobertaConfig(is_decoder=True, **shared)
        return transformers.RobertaForCausalLM(config)
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))
    config = transformers.Qwen2Config(num_key_value_heads=1, tie_word_embeddings=True, **shared)
    if kind == "reward model":
        config.num_labels = 1
        return transformers.Qwen2ForSequenceClassification(config)
    return transformers.Qwen2ForCausalLM(config)


def make_model(kind: str, folder: Path) -> str:
    """A folder with such a model and the tiny tokenizer."""
    from manyseeds.llm_track import models

    models.save(new_model(kind), models.tiny_tokenizer(), folder)
    return str(folder)


def make_teacher(student: str | Path) -> str:
    """A folder beside a student's with a tiny model of other weights; made once.

    A student that is no folder has the teacher of its task.
    """
    from manyseeds.llm_track import models, tasks

    if not Path(student).is_dir():
        return tasks.TEACHER
    folder = Path(student).with_name("teacher")
    if not folder.exists():
        model = new_model("tiny")
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.05 * torch.randn(p.shape, generator=generator)
        models.save(model, models.tiny_tokenizer(), folder)
    return str(folder)


def digest(model: Any) -> str:
    """A short digest of a model's weights."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]
