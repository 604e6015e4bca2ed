"""The models of the LLM track: the embedded tiny ones, or any causal LM of `transformers`.

`--model tiny` needs no download. It is trained once, in two steps, and stored in
`results/local/models`, like the other models with names of their own:

    tiny-base        a Llama of 137,984 parameters, pretrained for some seconds on the task's mixed
                     and mostly unformatted text
    tiny             tiny-base after `python llm_track/sft.py`: the cold start of DeepSeek-R1
    tiny-base-800    tiny-base pretrained for 800 steps, strong enough for RL without SFT: the start
                     of DeepSeek-R1-Zero
    micro-base-3200  one layer of width 32, pretrained for 3,200 steps, so that it is sometimes
                     right: what tiny can be distilled into
    tiny-reward      `--reward-model` only: tiny after `python llm_track/reward_model.py`, a
                     separate one for each seed

Anything else is a folder (of a finished run, or as `save_pretrained` writes it) or a hub name. Code
that comes with a model is never run: `trust_remote_code` is False everywhere (by default
transformers would ask), and weights are read from safetensors files only, never from pickles.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyseeds.cli import path_of
from manyseeds.digest import ROOT, boundary, code_digest
from manyseeds.errors import UsageError
from manyseeds.llm_track import sampling, tasks
from manyseeds.locks import alone
from manyseeds.process import ENDING, exit_reason
from manyseeds.progress import console
from manyseeds.record import is_finished
from manyseeds.runs.language import LanguageConfig, LanguageRun
from manyseeds.runs.parallel import Processes
from manyseeds.writing import replace_folder

PADDING = 3  # tokens on the left, in the check that they change nothing
TOLERANCE = 0.02  # standard deviations of the logits, of the same check
CHARACTERS = "".join(chr(i) for i in range(32, 127)) + "\n"
BASE_BATCH, BASE_LEARNING_RATE = 32, 2e-3


@dataclass(frozen=True)
class Base:
    """How a base model is made."""

    steps: int = 0  # of its pretraining (0: the task's)
    width: int = 64
    layers: int = 2


BASES = {
    "tiny-base": Base(),
    "tiny-base-800": Base(steps=800),
    "micro-base-3200": Base(steps=3_200, width=32, layers=1),
}


# ---- The tiny model ------------------------------------------------------------------------


def tiny_tokenizer() -> Any:
    """A token for each printable ASCII character and for each of the four tags."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    every_character = tokenizers.Regex(r"[\s\S]")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(every_character, "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in tasks.TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def tiny_config(tokenizer: Any, width: int = 64, layers: int = 2) -> Any:
    """Some layers of a width, four heads, embeddings tied; 256 positions."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=256,
        # At this width the usual 0.02 makes weights so small that a step of RL changes everything.
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_base(task: tasks.Task, base: Base, folder: Path) -> None:
    """Pretrain a base model on a task's text, by next-token prediction, and save it."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    tokenizer = tiny_tokenizer()
    model = LlamaForCausalLM(tiny_config(tokenizer, base.width, base.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_LEARNING_RATE)
    steps = base.steps or task.base_steps
    for step in range(steps):
        texts = [task.text(rng) + tokenizer.eos_token for _ in range(BASE_BATCH)]
        batch = tokenizer(texts, padding=True, return_tensors="pt", padding_side="right")
        ids, mask = batch["input_ids"], batch["attention_mask"].bool()
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
        targets = ids[:, 1:].masked_fill(~mask[:, 1:], -100)
        loss = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = BASE_LEARNING_RATE * (1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
    save(model, tokenizer, folder)


@boundary
def store_of(name: str, config: LanguageConfig) -> Path:
    """Where a model of the run's task, as today's code makes it, is kept."""
    kind = "reward" if name == tasks.REWARD else "tiny"
    origins = tasks.made_origins(name, config.task)
    digest = code_digest([*origins, *LanguageRun.kind_origins()])
    return Path(config.results) / "models" / f"{kind}-{digest}"


def find_made(name: str, config: LanguageConfig, processes: Processes, seed: int = 0) -> Path:
    """The folder of a model of tasks.MADE for the run's task, which is made at first use.

    seed: of tiny-reward. Raises UsageError where a completion does not fit into its context.
    """
    task = tasks.make(config.task)
    if task.id not in tasks.GENERATED:
        raise UsageError(
            f"--model {name}: made for {', '.join(tasks.GENERATED)}, not for --task {config.task}"
        )
    tokenizer = tiny_tokenizer()
    check_context(config, tiny_config(tokenizer), tokenizer, prompts_of(task))
    store = store_of(name, config)
    if name in BASES:
        folder = store / f"{name.removeprefix('tiny-')}-{task.id}"
        with processes.main_first(), alone(store):
            if not (folder / "config.json").exists():
                make_base(task, BASES[name], folder)
        return folder
    script, flags = "sft.py", ["--name", name]
    if name == tasks.REWARD:
        tiny = find_made("tiny", config, processes)
        script = "reward_model.py"
        flags += ["--model", str(tiny.resolve()), "--first-seed", str(seed)]
    else:
        seed = 0
    algo = script.removesuffix(".py")
    part = store / "runs" / task.id / algo / name / f"seeds-{seed:03d}-{seed:03d}"
    with processes.main_first(), alone(store):
        if not is_finished(part) or not (part / "model").exists():
            run_script(script, config, store, *flags)
    return part / "model"


def run_script(script: str, config: LanguageConfig, results: Path, *flags: str) -> None:
    """Run another script of the track on the run's task, with its own defaults, for one seed."""
    command = [f"llm_track/{script}", "--task", config.task, "--results", str(results)]
    command += ["--seeds", "1", "--threads", str(config.threads), "--quiet"]
    command += ["--evaluations", "1", *flags]
    if not config.quiet:
        console.print(f"once: python {' '.join(command)}")
    run_command(command, script)


def run_command(command: Sequence[str], name: str) -> None:
    """Run a script of the checkout with this code in one process. command: what follows `python`.

    A failure is a UsageError: name and the last line of its standard error.
    """
    inherited = {k: value for k, value in os.environ.items() if k not in Processes.VARIABLES}
    path = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, str(ROOT / command[0]), *command[1:]],
        env={**inherited, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **ENDING,
    ) as process:
        try:
            _, said = process.communicate()
        except BaseException:  # of an interrupt: it, too, removes what it has begun
            process.terminate()
            raise
    if process.returncode:
        lines = said.strip().splitlines() or [exit_reason(process.returncode)]
        raise UsageError(f"{name}: {lines[-1].removeprefix('error: ')}")


# ---- Loading and saving --------------------------------------------------------------------


def load_model(
    config: LanguageConfig, device: torch.device, processes: Processes
) -> tuple[Any, Any]:
    """The model and tokenizer of `--model`, ready to be trained.

    Raises UsageError for an unknown model, for one that would need its own code run, for one that
    cannot be padded on the left, and where prompt and completion do not fit into its context.
    """
    from transformers import AutoModelForCausalLM

    path = find(config.model, config, processes)
    model, tokenizer = read(path, AutoModelForCausalLM, "--model")
    model.to(device)
    check_context(config, model.config, tokenizer, prompts_of(tasks.make(config.task)))
    if config.lora_rank > 0:
        model = with_lora(model, config.lora_rank)
    model = prepare(model, config, device)
    check_padding(config, model, tokenizer)
    if config.sampler == "vllm":
        model.engine = start_engine(path, config, model, tokenizer, processes)
    return model, tokenizer


def load_scalar(
    name: str,
    config: LanguageConfig,
    device: torch.device,
    processes: Processes,
    what: str,
    seed: int = 0,
) -> Any:
    """A model with one scalar per token: the reward model or causal LM `name` with a scalar head.

    A causal LM's head is new and begins at 0, so its scalars do. what: the flag, for errors. seed:
    of tiny-reward.
    """
    from transformers import AutoModelForSequenceClassification

    path = find(name, config, processes, seed)
    model, own = read(path, AutoModelForSequenceClassification, what, num_labels=1)
    policy = read_tokenizer(find(config.model, config, processes), "--model")
    if own.get_vocab() != policy.get_vocab():
        raise UsageError(f"{what} {name}: its tokens are not those of --model {config.model}")
    if not hasattr(model, "score"):
        raise UsageError(f"{what} {name}: {type(model).__name__} has no scalar head")
    if not trained_head(model):
        if what == "--reward-model":
            raise UsageError(f"{what} {name}: has no scalar head; see llm_track/reward_model.py")
        nn.init.zeros_(model.score.weight)
    return prepare(model.to(device), config, device)


def trained_head(model: Any) -> bool:
    """Whether a model was read together with a scalar head of its own."""
    return any("SequenceClassification" in name for name in model.config.architectures or [])


def find(name: str, config: LanguageConfig, processes: Processes, seed: int = 0) -> str:
    """The folder, or the hub name, that a model's name stands for. seed: of tiny-reward."""
    if name in tasks.MADE:
        return str(find_made(name, config, processes, seed))
    path = path_of(name, "--model")
    if path.is_dir():
        return str(tasks.model_folder(path, "--model"))
    return name


def read(name: str, kind: Any, what: str, **settings: Any) -> tuple[Any, Any]:
    """Model and tokenizer from a folder or a hub; a failure is a UsageError naming the flag.

    Weights are read from safetensors only: a pickle can run any code.
    """
    with failing_in_one_line(name, what):
        model = kind.from_pretrained(
            name,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            **settings,
        )
    tokenizer = read_tokenizer(name, what)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def read_tokenizer(name: str, what: str) -> Any:
    """The tokenizer of a folder or a hub; a failure is a UsageError naming the flag."""
    from transformers import AutoTokenizer

    with failing_in_one_line(name, what):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.eos_token_id is None:
        raise UsageError(f"{what} {name}: its tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:  # any token will do: padding is identified by the masks
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextlib.contextmanager
def failing_in_one_line(name: str, what: str) -> Iterator[None]:
    """Turn any error of transformers about a name that it cannot read into a UsageError."""
    try:
        with quiet_transformers():
            yield
    except Exception as error:  # whatever a hub, a file or a class of transformers raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "trust_remote_code" in str(error):
            reason = "needs code of its own to be run, which this project never does"
        raise UsageError(f"{what} {name}: {reason}") from None


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars and reports about newly initialised heads."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def prepare(model: Any, config: LanguageConfig, device: torch.device) -> Any:
    """Disable dropout (otherwise the ratio is not 1 before an update) and set the precision."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # transformers checkpoints in this mode only
    # Weights and optimizer stay in float32; sampling.precision reads this.
    model.computes_in_half = half_precision(config, device)
    model.engine = None  # sampling.sample samples itself
    if config.liger:
        fuse(model, device)
    return model


@boundary
def start_engine(
    path: str, config: LanguageConfig, model: Any, tokenizer: Any, processes: Processes
) -> Any:
    """The engine of `--sampler vllm`; UsageError where it cannot run."""
    from manyseeds.llm_track import engine

    if processes.size > 1:
        raise UsageError("--sampler vllm: samples in one process; leave out --num_processes")
    longest = longest_prompt(config, tokenizer, prompts_of(tasks.make(config.task)))
    length = 2 * longest + completion_tokens(config)  # a generated task may draw longer prompts
    context = getattr(model.config, "max_position_embeddings", None) or length
    return engine.start(path, model.computes_in_half, min(length, context), config.micro_batch_size)


@boundary
def fuse(model: Any, device: torch.device) -> None:
    """Compute a model's norms, rotary embeddings and MLPs with Liger's kernels; UsageError where it
    cannot.

    Its fused losses stay off: they replace a whole loss with its logits, which every script spells
    out and `sampling.logprobs` computes in chunks already.
    """
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError:
        raise UsageError("--liger: needs liger-kernel; pip install -e '.[liger]'") from None
    if device.type != "cuda":
        raise UsageError("--liger: its kernels need a GPU; add --device cuda")
    kind = model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:  # Liger would only log that it does nothing
        raise UsageError(f"--liger: has no kernels for models of type {kind}")
    _apply_liger_kernel_to_instance(
        model=sampling.without_adapters(model),
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )


def half_precision(config: LanguageConfig, device: torch.device) -> bool:
    """Whether to compute in bfloat16; UsageError if requested on a GPU that does not support it."""
    on_gpu = device.type == "cuda"
    supported = not on_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
    if config.dtype == "bfloat16" and not supported:
        name = torch.cuda.get_device_name()
        raise UsageError(f"--dtype bfloat16: {name} cannot compute in it; use float32")
    return config.dtype == "bfloat16" or (config.dtype == "auto" and on_gpu and supported)


def completion_tokens(config: LanguageConfig) -> int:
    """The longest completion, in tokens."""
    return config.max_new_tokens or tasks.make(config.task).max_new_tokens


def prompts_of(task: tasks.Task) -> list[str]:
    """The prompts of a task that are checked against a model's context."""
    tested = task.tested if isinstance(task, tasks.JsonlTask) else task.test(256)
    return [p.prompt for p in (*task.trained_on(), *tested)]


def check_context(
    config: LanguageConfig, architecture: Any, tokenizer: Any, prompts: Sequence[str]
) -> None:
    """Prompt and completion must fit into the model's context; raises UsageError.

    architecture: the model's own config, as transformers has it.
    """
    longest = longest_prompt(config, tokenizer, prompts)
    context = getattr(architecture, "max_position_embeddings", None)
    if context is not None and longest + completion_tokens(config) > context:
        raise UsageError(
            f"--max-new-tokens {completion_tokens(config)}: with prompts of up to {longest} "
            f"tokens this is beyond the context of {context} tokens of {config.model}"
        )


def longest_prompt(config: LanguageConfig, tokenizer: Any, prompts: Sequence[str]) -> int:
    """The length of the longest prompt, in tokens."""
    task = tasks.make(config.task)
    return max(map(len, sampling.encode_prompts(tokenizer, task, prompts)))


@torch.no_grad()
def check_padding(config: LanguageConfig, model: Any, tokenizer: Any) -> None:
    """Prompts are padded on the left, which must not change what follows; raises UsageError.

    It does for RoBERTa and its relatives: their positions begin after the padding token's id and
    skip every padding token, whatever positions they are given.
    """
    task = tasks.make(config.task)
    (row,) = sampling.encode_prompts(tokenizer, task, prompts_of(task)[:1])
    ids = torch.tensor([[tokenizer.pad_token_id] * PADDING + row], device=model.device)
    mask = torch.arange(ids.shape[1], device=model.device).unsqueeze(0) >= PADDING
    settings = {"use_cache": False, "logits_to_keep": 1}
    alone = model(input_ids=ids[:, PADDING:], **settings).logits
    padded = model(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=sampling.positions(mask),
        **settings,
    ).logits
    if (padded - alone).abs().max() > TOLERANCE * alone.std():
        raise UsageError(
            f"--model {config.model}: a {model.config.model_type} model computes other "
            "log-probabilities for a prompt that is padded on the left, as in a batch"
        )


def check_preferences(
    config: Any, model: Any, tokenizer: Any, pairs: Sequence[tasks.Preference]
) -> None:
    """The pairs of `--preferences` must fit whole; raises UsageError."""
    texts = [text for pair in pairs for text in (pair.chosen, pair.rejected)]
    check_completions(config, tokenizer, texts, f"--preferences {config.preferences}")
    check_context(config, model.config, tokenizer, [pair.prompt for pair in pairs])


def check_completions(
    config: LanguageConfig, tokenizer: Any, texts: Sequence[str], what: str
) -> None:
    """Completions to learn from must fit whole, or they lose their answers; raises UsageError."""
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    longest, limit = max(map(len, rows)) + 1, completion_tokens(config)  # and the end
    if longest > limit:
        raise UsageError(
            f"{what}: has a completion of {longest} tokens, more than the {limit} of "
            "--max-new-tokens"
        )


def with_lora(model: Any, rank: int) -> Any:
    """Freeze a model and add low-rank adapters to its linear layers (LoRA, arXiv 2106.09685)."""
    try:
        import peft
    except ImportError:
        raise UsageError(f"--lora-rank {rank}: needs peft; pip install -e '.[llm]'") from None
    adapters = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)  # every seed begins with the same adapters, as with the same weights
        return peft.get_peft_model(model, adapters)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer as transformers reads them, whole or not at all."""
    if hasattr(model, "merge_and_unload"):
        device = next(model.parameters()).device
        merged = copy.deepcopy(model.cpu()).merge_and_unload()  # a GPU may have no room for two
        model.to(device)
        model = merged

    def fill(fresh: Path) -> None:
        with quiet_transformers():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)

    replace_folder(folder, fill)


def trainable(*models: Any) -> list[nn.Parameter]:
    """The parameters that are trained: all, or with LoRA the adapters."""
    return [p for model in models for p in model.parameters() if p.requires_grad]


def store_rounded(model: Any) -> None:
    """Store the weights of linear layers in bfloat16, to which every use rounds them anyway.

    Results stay the same to the bit, in about half the memory. Embeddings and norms compute in
    float32 and stay as they are, and so does a head that is tied to the embeddings.
    """
    from transformers.pytorch_utils import Conv1D

    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    kept = {id(p) for m in embeddings for p in m.parameters()}
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            for p in module.parameters(recurse=False):
                if id(p) not in kept:
                    p.data = p.data.to(torch.bfloat16)


def learning_rate(initial: float, done: float, config: LanguageConfig) -> float:
    """The learning rate after a share `done` of the training, 0 <= done < 1.

    It rises linearly from 0 to its initial value within `--warmup`, and then follows
    `--lr-schedule` to the end: a function of the samples alone, so that resuming needs no state.
    """
    if done < config.warmup:
        return initial * done / config.warmup
    left = 1 - (done - config.warmup) / (1 - config.warmup)  # 1 after the warm-up, 0 at the end
    if config.lr_schedule == "linear":
        return initial * left
    if config.lr_schedule == "cosine":
        return initial * (1 - math.cos(math.pi * left)) / 2
    return initial


def set_learning_rate(
    optimizer: torch.optim.Optimizer, initial: float, done: float, config: LanguageConfig
) -> None:
    """Give all weights of an optimizer the learning rate after a share of the training."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(initial, done, config)


class Reference:
    """The frozen model that a policy is kept close to: a copy, or itself without LoRA's adapters.

    A copy of a policy that computes in bfloat16 is stored in it where that changes nothing.
    Raises UsageError from `reset` with LoRA: what is frozen there has no adapters.
    """

    def __init__(self, policy: Any) -> None:
        self.adapters = hasattr(policy, "disable_adapter")
        self.model = policy if self.adapters else copy.deepcopy(policy).requires_grad_(False)
        if policy.computes_in_half and not self.adapters:
            store_rounded(self.model)

    def reset(self, policy: Any) -> None:
        """Take the present policy as the reference."""
        if self.adapters:
            raise UsageError("--iterations: the reference cannot be refreshed with --lora-rank")
        self.model.load_state_dict(policy.state_dict())

    def logprobs(self, samples: sampling.Samples, temperature: float, size: int) -> Tensor:
        """Log pi_ref of each token, [B, T], without gradients, `size` rows at a time; equal rows
        are computed once."""

        def of_part(part: sampling.Samples) -> Tensor:
            first, which = sampling.distinct(part.ids())
            return sampling.logprobs(self.model, part[first], temperature)[which]

        without = self.model.disable_adapter() if self.adapters else contextlib.nullcontext()
        with without:
            return sampling.in_batches(of_part, samples, size)
