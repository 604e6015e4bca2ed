"""The models of the LLM track: the embedded tiny ones, or any causal LM of `transformers`.

`--model tiny` needs no download. It is trained once, in two steps, and stored in
`results/local/models`, like the other models with names of their own:

    tiny-base        a Llama of 137,984 parameters, pretrained for some seconds on the task's mixed
                     and mostly unformatted text
    tiny             tiny-base after `python llm_track/sft.py`: the cold start of DeepSeek-R1
    tiny-base-800    tiny-base pretrained for 800 steps, strong enough for RL without SFT: the start
                     of DeepSeek-R1-Zero; tiny-base-400 for 400
    tiny-base-800-5  tiny-base-800 with demonstrations as 5% of its text, not 15%; -1 and -0 with 1%
                     and none
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
import importlib.util
import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from manyseeds import kernels, llama
from manyseeds.cli import flag, path_of
from manyseeds.digest import ROOT, boundary, code_digest, installing, room_file
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.llama import SeedLlama
from manyseeds.llm_track import sampling, tasks
from manyseeds.locks import alone
from manyseeds.optim import SeedAdam
from manyseeds.process import ENDING, exit_reason, resolve_device
from manyseeds.progress import console
from manyseeds.record import consecutive, is_finished, model_files
from manyseeds.runs.language import LanguageConfig, LanguageRun
from manyseeds.runs.parallel import Processes
from manyseeds.seeds import SeedStreams
from manyseeds.untrusted import check_within, read_header, read_json
from manyseeds.writing import replace_folder

PADDING = 3  # tokens on the left, in the check that they change nothing
WEIGHTS = ".safetensors"
LAYERS = 1024  # of a model, and experts
NEW_WEIGHTS = 2**22  # that a model may have besides those of its files: a head, buffers
TOLERANCE = 0.02  # standard deviations of the logits, of the same check
Row = TypeVar("Row", tasks.Problem, tasks.Preference)
CHARACTERS = "".join(chr(i) for i in range(32, 127)) + "\n"
BASE_BATCH, BASE_LEARNING_RATE = 32, 2e-3
AT_ONCE = 5  # base models of other seeds that are made, and lost by an interrupt


@dataclass(frozen=True)
class Base:
    """How a base model is made."""

    steps: int = 0  # of its pretraining (0: the task's)
    width: int = 64
    layers: int = 2
    demonstrations: float = 0.15  # share of its text


BASES = {
    "tiny-base": Base(),
    "tiny-base-400": Base(steps=400),
    "tiny-base-800": Base(steps=800),
    "tiny-base-800-5": Base(steps=800, demonstrations=0.05),
    "tiny-base-800-1": Base(steps=800, demonstrations=0.01),
    "tiny-base-800-0": Base(steps=800, demonstrations=0.0),
    "micro-base-3200": Base(steps=3_200, width=32, layers=1),
}


# ---- The tiny model ------------------------------------------------------------------------


def tiny_tokenizer() -> Any:
    """A token for each printable ASCII character and for each of the four tags."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    tokenizer = tokenizers.Tokenizer(
        # Without merges every character is a token. For WordLevel a regular expression would have
        # to split the text before, which takes two to three times as long.
        tokenizers.models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>")
    )
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


def make_bases(task: tasks.Task, base: Base, seeds: Sequence[int], folders: Sequence[Path]) -> None:
    """Pretrain a base model from each seed, by next-token prediction on a task's text; save them.

    They are one batch; in C a seed has the same bits alone and on every machine.
    """
    from transformers import LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    template = LlamaForCausalLM(tiny_config(tokenizer, base.width, base.layers))
    model = SeedLlama.of_models([template] * len(seeds))
    streams = SeedStreams(seeds, "init")
    with torch.no_grad():
        for name, weights in model.views().items():
            if "norm" not in name:
                normal = streams.normal(*weights.shape[1:])
                weights.copy_(normal * template.config.initializer_range)
    rngs = [np.random.default_rng(seed) for seed in seeds]
    optimizer = SeedAdam(model)
    steps = base.steps or task.base_steps
    for step in range(steps):
        texts = [[task.text(rng, base.demonstrations) for _ in range(BASE_BATCH)] for rng in rngs]
        batch = texts_of(tokenizer, texts)
        logprobs, _ = llama.logprobs(model, batch, 1.0, entropies=False)
        loss = -logprobs.sum((1, 2)) / batch.lengths.sum(1)
        loss.sum().backward()
        optimizer.step(BASE_LEARNING_RATE * (1 - step / steps), 1.0)
    for s, folder in enumerate(folders):
        template.load_state_dict(model.state_of(s))
        save(template, tokenizer, folder)


def texts_of(tokenizer: Any, texts: Sequence[Sequence[str]]) -> llama.Completions:
    """Each seed's texts, of which the first token is the prompt; the last one ends the text."""
    S, B, end = len(texts), len(texts[0]), [tokenizer.eos_token_id]
    ids = tokenizer([x for own in texts for x in own], add_special_tokens=False)["input_ids"]
    rows = [torch.tensor(x + end) for x in ids]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True).view(S, B, -1)
    lengths = torch.tensor([len(x) for x in ids]).view(S, B)  # without the first, with the end
    return llama.Completions(tokens[..., :1], torch.ones_like(lengths), tokens[..., 1:], lengths)


@boundary
def store_of(name: str, config: LanguageConfig) -> Path:
    """Where a model of the run's task, as today's code makes it, is kept.

    What it is made from is kept beside it: a script that makes one has the store as its results.
    """
    kind = "base" if name in BASES else name.removeprefix("tiny-")
    origins = tasks.made_origins(name, config.task)
    digest = code_digest([*origins, *LanguageRun.kind_origins()])
    results = Path(config.results)
    folder = results.parent if results.parent.name == "models" else results / "models"
    in_c = kernels.computing() == "C"  # PyTorch's bits are other ones
    return folder / f"{kind}-{digest}{'' if in_c else '-torch'}"


def find_made(
    name: str, config: LanguageConfig, processes: Processes, seeds: Sequence[int] = (0,)
) -> list[Path]:
    """The folders of a model of tasks.MADE for the run's task, of each of some seeds of the run.

    Those that are missing are made at once. Each seed has a tiny-reward of its own; with
    `--initial-per-seed` all else, too, but for the teacher.
    """
    task = tasks.make(config.task)
    own = config.initial_per_seed and name != tasks.TEACHER
    wanted = seeds if own or name == tasks.REWARD else [0] * len(seeds)
    own |= name == "tiny"  # what all seeds share is that of seed 0
    store = store_of(name, config)
    check_within(store, store.parent.parent)
    if name in BASES:
        folders = {s: store / f"{name.removeprefix('tiny-')}-{task.id}-{s}" for s in wanted}
        with processes.main_first(), alone(store):
            missing = [s for s, x in folders.items() if not (x / "config.json").exists()]
            for k in range(0, len(missing), AT_ONCE):
                some = missing[k : k + AT_ONCE]
                with kernels.unrecorded():
                    make_bases(task, BASES[name], some, [folders[s] for s in some])
        return [folders[s] for s in wanted]
    algo = tasks.SCRIPTS.get(name, ("sft",))[-1]
    run = store / "runs" / task.id / algo / (f"{name}-own" if own else name)
    flags = ["--name", run.name, *(["--initial-per-seed"] if own else [])]
    parts = {s: run / f"seeds-{s:03d}-{s:03d}" for s in wanted}
    with processes.main_first(), alone(store):
        missing = [s for s, x in parts.items() if not is_finished(x, with_weights=True)]
        for first, *others in consecutive(missing):
            numbers = ["--first-seed", str(first), "--seeds", str(1 + len(others))]
            run_script(f"{algo}.py", config, store, *flags, *numbers)
    return [parts[s] / "model" for s in wanted]


def make(name: str, config: LanguageConfig, processes: Processes, seeds: Sequence[int]) -> None:
    """Make what some seeds of a run lack of a model of tasks.MADE, at once; of others nothing."""
    if name in tasks.MADE:
        find_made(name, config, processes, seeds)


def run_script(script: str, config: LanguageConfig, results: Path, *flags: str) -> None:
    """Run another script of the track on the run's task, with its own defaults."""
    command = [f"llm_track/{script}", "--task", config.task, "--results", str(results)]
    command += ["--threads", str(config.threads), "--quiet"]
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
        [sys.executable, str(room_file(command[0])), *command[1:]],
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
    config: LanguageConfig, device: torch.device, processes: Processes, seed: int = 0
) -> tuple[Any, Any]:
    """The model and tokenizer of `--model`, ready to be trained. seed: with `--initial-per-seed`.

    Raises UsageError for an unknown model, for one that would need its own code run, and for one
    that cannot be padded on the left. What can be refused without it: `check_request`.
    """
    from transformers import AutoModelForCausalLM

    path = find(config.model, config, processes, seed)
    model, tokenizer = read(path, AutoModelForCausalLM, "--model")
    model.to(device)
    if config.lora_rank > 0:
        model = with_lora(model, config.lora_rank)
    model = prepare(model, config, device)
    check_padding(config, model, tokenizer, f"--model {config.model}")
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
    of the run, see `find_made`.
    """
    from transformers import AutoModelForSequenceClassification

    path = find(name, config, processes, seed, what)
    model, own = read(path, AutoModelForSequenceClassification, what, num_labels=1)
    policy = read_tokenizer(find(config.model, config, processes, seed), "--model")
    check_reward_model(name, config, model.config, own, policy, what)
    if not hasattr(model, "score"):
        raise UsageError(f"{what} {name}: {type(model).__name__} has no scalar head")
    if not trained_head(model.config):
        nn.init.zeros_(model.score.weight)
    return prepare(model.to(device), config, device)


def check_tokens(what: str, config: LanguageConfig, own: Any, policy: Any) -> None:
    """Another model reads the policy's tokens; raises UsageError. own, policy: tokenizers.

    what: its flag and its name.
    """
    if own.get_vocab() != policy.get_vocab():
        raise UsageError(f"{what}: its tokens are not those of --model {config.model}")


def check_teacher(config: Any, architecture: Any, own: Any, of_policy: Any, tokenizer: Any) -> None:
    """A teacher has a head for tokens, reads the policy's, and as many of them; raises UsageError.

    architecture, own: its config of transformers and its tokenizer; of_policy, tokenizer: those of
    `--model`.
    """
    if trained_head(architecture):
        raise UsageError(f"--teacher {config.teacher}: is a reward model")
    check_tokens(f"--teacher {config.teacher}", config, own, tokenizer)
    contexts = (getattr(x, "max_position_embeddings", None) for x in (architecture, of_policy))
    theirs, ours = (x or math.inf for x in contexts)
    if theirs < ours:
        raise UsageError(
            f"--teacher {config.teacher}: its context is {theirs} tokens, that of --model "
            f"{config.model} {ours}"
        )


def load_teacher(config: Any, device: torch.device, processes: Processes) -> Any:
    """The model of `--teacher`, which reads the tokens of `--model`."""
    from transformers import AutoModelForCausalLM

    path = find(config.teacher, config, processes, what="--teacher")
    model, own = read(path, AutoModelForCausalLM, "--teacher")
    policy = read_tokenizer(find(config.model, config, processes), "--model")
    check_tokens(f"--teacher {config.teacher}", config, own, policy)
    model = prepare(model.to(device), config, device)
    check_padding(config, model, policy, f"--teacher {config.teacher}")
    return model


def check_reward_model(
    name: str, config: LanguageConfig, architecture: Any, own: Any, policy: Any, what: str
) -> None:
    """A reward model reads the policy's tokens, and has a head of its own; raises UsageError.

    architecture, own: its config of transformers and its tokenizer. policy: that of `--model`.
    """
    check_tokens(f"{what} {name}", config, own, policy)
    if what == "--reward-model" and not trained_head(architecture):
        raise UsageError(f"{what} {name}: has no scalar head; see llm_track/reward_model.py")


def trained_head(architecture: Any) -> bool:
    """Whether a model was written together with a scalar head of its own."""
    return any("SequenceClassification" in name for name in architecture.architectures or [])


def find(
    name: str, config: LanguageConfig, processes: Processes, seed: int = 0, what: str = "--model"
) -> str:
    """The folder, or the hub name, that a model's name stands for. seed: of the run."""
    if name in tasks.MADE:
        return str(find_made(name, config, processes, [seed])[0])
    return located(name, what)


def located(name: str, what: str) -> str:
    """The folder of a model, or its hub name; UsageError for a path at which there is none."""
    path = path_of(name, what)
    if path.is_dir():
        folder = tasks.model_folder(path, what)
        model_files(folder, what)
        return str(folder)
    near = did_you_mean(name, tasks.MADE)
    of_a_hub = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)
    if path.exists() or not of_a_hub or ("/" not in name and "did you mean" in near):
        raise UsageError(f"{what} {name}: there is no such folder{near}")
    return name


def read(name: str, kind: Any, what: str, **settings: Any) -> tuple[Any, Any]:
    """Model and tokenizer from a folder or a hub; a failure is a UsageError naming the flag.

    Weights are read from safetensors only: a pickle can run any code.
    """
    if os.path.isdir(name):
        check_sizes(Path(name), kind, what, **settings)
    with failing_in_one_line(name, what):
        model = kind.from_pretrained(
            name,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            **settings,
        )
    if not all(p.isfinite().all() for p in model.parameters()):
        raise UsageError(f"{what} {name}: has weights that are NaN or infinite")
    tokenizer = read_tokenizer(name, what)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def check_sizes(folder: Path, kind: Any, what: str, **settings: Any) -> None:
    """Raise UsageError for a folder whose config.json describes a much larger model than its files
    hold: what they lack, `transformers` would allocate."""
    from transformers import AutoConfig

    files = model_files(folder, what)
    headers = [read_header(path)[0] for name, path in files.items() if name.endswith(WEIGHTS)]
    stored = sum(math.prod(x.shape) for header in headers for x in header.values())
    try:
        check_layers(read_json(files["config.json"]))
    except (AttributeError, KeyError, ValueError, UsageError) as error:
        raise UsageError(f"{what} {folder}: {error}") from None
    with failing_in_one_line(str(folder), what):
        architecture = AutoConfig.from_pretrained(folder, trust_remote_code=False, **settings)
        with torch.device("meta"):
            model = kind.from_config(architecture)
        size = sum(x.numel() for x in (*model.parameters(), *model.buffers()))
    if size > 2 * stored + NEW_WEIGHTS:
        raise UsageError(
            f"{what} {folder}: config.json describes {size:,} weights, the files have {stored:,}"
        )


def check_layers(config: Any) -> None:
    """Raise ValueError for a config.json with more layers, or lists for them, than any model has:
    each would be made as an object."""
    for name, x in config.items():
        if isinstance(x, dict):
            check_layers(x)
        count = len(x) if isinstance(x, list) else x
        if re.search("layer|expert", name) and isinstance(count, int | float) and count > LAYERS:
            raise ValueError(f"config.json says {name} {count}; at most {LAYERS}")


def read_tokenizer(name: str, what: str) -> Any:
    """The tokenizer of a folder or a hub; a failure is a UsageError naming the flag.

    A chat template that reads the clock, as Llama 3's does, gets the same day for ever: a prompt
    must not change from one day to the next.
    """
    from transformers import AutoTokenizer
    from transformers.utils import chat_template_utils

    with failing_in_one_line(name, what):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.eos_token_id is None:
        raise UsageError(f"{what} {name}: its tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:  # any token will do: padding is identified by the masks
        tokenizer.pad_token = tokenizer.eos_token
    chat_template_utils.datetime = Today  # type: ignore[attr-defined, misc]
    return tokenizer


class Today(datetime):
    """The clock of chat templates, whoever renders them: ours, or TRL's trainers."""

    @classmethod
    def now(cls, tz: Any = None) -> Today:
        """The day that Llama 3's template assumes without a clock."""
        return cls(2024, 7, 26, tzinfo=tz)


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
    """Without progress bars, and reports about new heads and about retries at a hub."""
    from huggingface_hub.utils import logging as of_hub
    from transformers.utils import logging

    levels = logging.get_verbosity(), of_hub.get_verbosity()
    logging.set_verbosity_error()
    of_hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(levels[0])
        of_hub.set_verbosity(levels[1])


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
    return model


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
    return config.max_new_tokens or tasks.of(config).max_new_tokens


@torch.no_grad()
def check_padding(config: LanguageConfig, model: Any, tokenizer: Any, what: str) -> None:
    """Prompts are padded on the left, which must not change what follows; raises UsageError.

    It does for RoBERTa and its relatives: their positions begin after the padding token's id and
    skip every padding token, whatever positions they are given.
    """
    task = tasks.of(config)
    (row,) = sampling.encode_prompts(tokenizer, task, [rows_of(task)[0].prompt])
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
            f"{what}: a {model.config.model_type} model computes other "
            "log-probabilities for a prompt that is padded on the left, as in a batch"
        )


# ---- What is refused before a model is made, trained or read --------------------------------


def check_request(config: Any) -> None:
    """Raise UsageError for what needs no weights to be refused: everything about the data at once.

    Rows that `--drop-long-rows` leaves out are counted in a note.
    """
    device = resolve_device(config.device)
    half_precision(config, device)
    if config.lora_rank > 0:
        check_installed("peft", f"--lora-rank {config.lora_rank}", "peft", "llm")
    told = list[str]()
    for name in tasks.MODELS:
        if (made := getattr(config, name, "")) in tasks.MADE and config.task not in tasks.GENERATED:
            known = ", ".join(tasks.GENERATED)
            told.append(f"{flag(name)} {made}: made for {known}, not for --task {config.task}")
    architecture, tokenizer = looked_at(config.model, "--model")
    width = getattr(architecture.get_text_config(), "hidden_size", math.inf)
    if config.lora_rank > width:
        raise UsageError(f"--lora-rank {config.lora_rank}: must be at most the width, {width}")
    if trained_head(architecture):
        raise UsageError(f"--model {config.model}: is a reward model; use --reward-model")
    if getattr(config, "teacher", ""):
        check_teacher(config, *looked_at(config.teacher, "--teacher"), architecture, tokenizer)
    if getattr(config, "reward_model", ""):
        what = config.reward_model, "--reward-model"
        if config.reward_model not in tasks.MADE:
            check_reward_model(what[0], config, *looked_at(*what), tokenizer, what[1])
        elif config.reward_model != tasks.REWARD:
            raise UsageError(f"--reward-model {what[0]}: is no reward model; {tasks.REWARD} is one")
        else:
            check_tokens(f"--reward-model {what[0]}", config, tiny_tokenizer(), tokenizer)
    task = tasks.of(config)
    rows: dict[Any, Sequence[str]] = {row: () for row in rows_of(task)}
    try:
        rows |= config.learned_from()
    except UsageError as error:
        told.append(str(error))
    try:
        kept = fitting(config, architecture, tokenizer, {} if told else rows)
    except UsageError as error:
        told.append(str(error))
    if config.drop_long_rows and not (of_files := sum(bool(row.where) for row in rows)):
        told.append(f"--drop-long-rows: {config.task} has no rows of a data set")
    if told:
        raise UsageError("; ".join(told))
    if left_out := len(rows) - len(kept):
        counts = f"{left_out:,} of {of_files:,}"
        print(f"note: --drop-long-rows: left out {counts} rows", file=sys.stderr)


def check_installed(package: str, what: str, name: str, extra: str) -> None:
    """Raise UsageError unless a package can be imported. extra: of pyproject.toml, for the hint."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{what}: needs {name}; {installing(extra)}")


def looked_at(name: str, what: str) -> tuple[Any, Any]:
    """A model's config of transformers and its tokenizer, without its weights."""
    if name in tasks.MADE:
        base, tokenizer = BASES.get(name, Base()), tiny_tokenizer()
        return tiny_config(tokenizer, base.width, base.layers), tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    path = located(name, what)
    if os.path.isdir(path):
        scalar = what == "--reward-model"
        kind = AutoModelForSequenceClassification if scalar else AutoModelForCausalLM
        check_sizes(Path(path), kind, what)
    with failing_in_one_line(path, what):
        architecture = AutoConfig.from_pretrained(path, trust_remote_code=False)
    return architecture, read_tokenizer(path, what)


def reads_tiny_tokens(name: str) -> bool:
    """Whether a model that is not in tasks.MADE was trained from one of them."""
    return bool(looked_at(name, "--model")[1].get_vocab() == tiny_tokenizer().get_vocab())


def rows_of(task: tasks.Task) -> list[tasks.Problem]:
    """The problems of a task, or some of those that are generated on the fly."""
    tested = task.tested if isinstance(task, tasks.JsonlTask) else task.test(256)
    return [*task.trained_on(), *tested]


def task_of(config: LanguageConfig, architecture: Any, tokenizer: Any) -> tasks.Task:
    """The task of a run for its model: without the rows that `--drop-long-rows` leaves out, and
    with the opening of its prompts (`sampling.with_opening`)."""
    task = tasks.of(config)
    if isinstance(task, tasks.JsonlTask):
        trained, tested = (
            fitting(config, architecture, tokenizer, {row: [] for row in rows})
            for rows in (task.trained, task.tested)
        )
        task = task.but(trained=trained, tested=tested)
    return sampling.with_opening(task, tokenizer)


def fitting(
    config: Any, architecture: Any, tokenizer: Any, rows: Mapping[Row, Sequence[str]]
) -> list[Row]:
    """The rows that fit: prompt and longest completion into the model's context, completions to
    learn from, with their ends, into `--max-new-tokens`; they would lose their answers.

    architecture: the model's config of transformers. rows: each with its completions to learn from.
    Raises UsageError for rows that do not fit, with file and line; with `--drop-long-rows` only if
    none does.
    """
    if not rows:
        return []
    T, task = completion_tokens(config), tasks.of(config)
    context = getattr(architecture, "max_position_embeddings", None) or math.inf
    with failing_in_one_line(config.model, "--model"):  # of its template, of its tokenizer's sizes
        prompts = sampling.encode_prompts(tokenizer, task, [row.prompt for row in rows])
    texts = [text for completions in rows.values() for text in completions]
    encoded = iter(sampling.token_ids(tokenizer, texts, special=False) if texts else ())
    kept, faults = [], []
    for (row, completions), prompt in zip(rows.items(), prompts, strict=True):
        ends = [len(ids) + 1 for ids in itertools.islice(encoded, len(completions))]
        if len(prompt) + T > context:
            fault = f"a prompt of {len(prompt)} tokens"
        elif max(ends, default=0) > T:
            fault = f"a completion of {max(ends)} tokens"
        else:
            kept.append(row)
            continue
        faults.append((row.where, fault))
    if not faults or (config.drop_long_rows and kept):
        return kept
    limits = f"--max-new-tokens {T}"
    if context < math.inf:
        limits += f" in the context of {context} tokens of {config.model}"
    if not all(where for where, _ in faults):  # of a generated task
        raise UsageError(f"{limits}: does not fit {faults[0][1]}")
    hint = "no row fits" if not kept else "--drop-long-rows leaves such rows out"
    raise UsageError(f"{tasks.by_file(faults)}: too long for {limits}; {hint}")


def with_lora(model: Any, rank: int) -> Any:
    """Freeze a model and add low-rank adapters to its linear layers (LoRA, arXiv 2106.09685)."""
    check_installed("peft", f"--lora-rank {rank}", "peft", "llm")
    import peft

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
