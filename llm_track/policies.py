"""The models that methods train: all seeds of a small Llama as one batch, or one of transformers.

Both answer the same calls with tensors of S seeds; a model of transformers has S = 1, and is
trained once for each seed. Shapes are those of `rollout.Rollout`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyseeds import llama
from manyseeds.llama import Completions, SeedLlama
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.rollout import (
    AnyRollout,
    Prompts,
    Rollout,
    pad_left,
    rollout_of,
    samples_of,
    trimmed,
)
from manyseeds.optim import SeedAdam
from manyseeds.process import resolve_device
from manyseeds.runs.parallel import Processes


class Kept:
    """What a checkpoint holds of something that learns, for `SeedsRun.save_if_due`."""

    def tensors(self) -> dict[str, Tensor]:
        """Its state, seed first, in its own memory."""
        raise NotImplementedError

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave."""
        for name, x in self.tensors().items():
            x.copy_(tensors[name])


# ---- All seeds of a small Llama ------------------------------------------------------------


class SeedModel(Kept):
    """S Llamas of one architecture, each its own seed's; with a scalar head, or without."""

    def __init__(self, llama: SeedLlama, tokenizer: Any, template: Any) -> None:
        """template: a model of transformers of this architecture, to save one as."""
        self.llama, self.tokenizer, self.template = llama, tokenizer, template

    @classmethod
    def of_models(cls, each: Sequence[Any], tokenizer: Any) -> Self:
        """One seed for each of some models of transformers."""
        return cls(SeedLlama.of_models(each), tokenizer, each[0])

    @property
    def config(self) -> Any:
        """The architecture, as transformers describes it."""
        return self.template.config

    @property
    def device(self) -> torch.device:
        return self.llama.flat.device

    @property
    def processes(self) -> Processes:
        """This one alone: see `together`."""
        return Processes(self.device)

    def __len__(self) -> int:
        return len(self.llama.flat)

    def of(self, seeds: Sequence[int]) -> Self:
        """A copy with some seeds, counted from the first one; without gradients."""
        part = copy.copy(self)
        part.llama = copy.deepcopy(self.llama).requires_grad_(False)
        part.llama.flat.data = part.llama.flat.data[list(seeds)]
        return part

    def frozen(self) -> Self:
        """A copy of all seeds, without gradients."""
        return self.of(range(len(self)))

    @torch.no_grad()
    def reset(self, policy: Any) -> None:
        """Take the present weights of another one."""
        self.llama.flat.copy_(policy.llama.flat)

    def sample(
        self, prompts: Prompts, uniforms: Tensor, temperature: float, greedy: bool = False
    ) -> Rollout:
        """Complete the prompts of each seed; uniforms [S, B, T] in [0, 1), one for each token."""
        ids, lengths = pad_left(prompts, self.tokenizer.pad_token_id, uniforms.device)
        end = self.tokenizer.eos_token_id
        sampled = llama.sample(self.llama, ids, lengths, uniforms, end, temperature, greedy)
        tokens, sizes, ended, logprobs, entropy = sampled
        T = int(sizes.max())
        return Rollout(
            ids, lengths, tokens[..., :T], sizes, ended, logprobs[..., :T], entropy[..., :T]
        )

    def outputs(self, rollout: Rollout, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log pi of each token of the completions, and the entropy of the distribution that it is
        from (if asked for, otherwise 0), [S, B, T], 0 after the last; differentiable."""
        with torch.set_grad_enabled(self.llama.flat.requires_grad and torch.is_grad_enabled()):
            return llama.logprobs(self.llama, completions(rollout), temperature, entropy)

    def logprobs(self, rollout: Rollout, temperature: float) -> Tensor:
        """Log pi of each token of the completions, [S, B, T], 0 after the last; differentiable."""
        return self.outputs(rollout, temperature, entropy=False)[0]

    def scalars(self, rollout: Rollout) -> Tensor:
        """The scalar after each prompt and each token of its completion, [S, B, T + 1]."""
        return llama.scalars(self.llama, completions(rollout))

    def scores(self, rollout: Rollout) -> Tensor:
        """A reward model's score of each completion, [S, B]: its scalar after the last token."""
        return self.scalars(rollout).gather(-1, rollout.lengths.unsqueeze(-1)).squeeze(-1)

    def parts(self, batch: AnyRollout, rows: Tensor | None = None) -> Iterator[AnyRollout]:
        """Some rows of each seed, [S, M], in micro-batches: all at once. None: all rows."""
        yield batch if rows is None else batch[rows]

    def optimizer(self) -> SeedAdamW:
        """Of all weights."""
        return SeedAdamW(self.llama)

    def tensors(self) -> dict[str, Tensor]:
        return {"parameters": self.llama.flat.detach()}

    def save(self, s: int, folder: Path) -> None:
        """Write the model of a seed as transformers reads it."""
        self.template.load_state_dict(self.llama.state_of(s), strict=False)
        models.save(self.template, self.tokenizer, folder)


OVERFLOW = 1e16  # of gradients, whose squares add up to more than a float32 can be


class SeedAdamW(Kept):
    """AdamW of all seeds (Loshchilov and Hutter, 2019), without weight decay."""

    def __init__(self, module: SeedLlama) -> None:
        self.adam = SeedAdam(module)

    def step(self, lr: float | Tensor, max_grad_norm: float) -> Tensor:
        """A step from the gradients, whose norms [S] are clipped, and returned as they were.

        None for a seed whose gradient is 0, as Adam would drift on, or not finite.
        """
        (flat,) = self.adam.parameters
        if flat.grad is None:  # no seed has learned from anything
            return flat.new_zeros(len(flat))
        largest = flat.grad.flatten(1).abs().amax(1)
        return self.adam.step(lr, max_grad_norm, (largest > 0) & (largest < OVERFLOW))

    def tensors(self) -> dict[str, Tensor]:
        powers = self.adam.beta_powers.transpose(0, 1)
        return {"mean": self.adam.mean, "square": self.adam.square, "beta_powers": powers}


def completions(rollout: Rollout) -> Completions:
    """A rollout as llama.py takes it."""
    return Completions(rollout.prompts, rollout.prompt_lengths, rollout.tokens, rollout.lengths)


# ---- A model of transformers ---------------------------------------------------------------


class HubModel(Kept):
    """One model of transformers, as a batch of one seed; trained by several processes together."""

    def __init__(self, model: Any, tokenizer: Any, config: Any, processes: Processes) -> None:
        self.model, self.tokenizer, self.processes = model, tokenizer, processes
        self.size, self.sampled = config.micro_batch_size, config.sampling_batch_size

    @property
    def config(self) -> Any:
        """The architecture, as transformers describes it."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.processes.device

    def __len__(self) -> int:
        return 1

    def of(self, seeds: Sequence[int]) -> Self:
        """Itself: there is only one seed."""
        return self

    def frozen(self) -> HubReference:
        """A copy without gradients, or the model without LoRA's adapters."""
        return HubReference(models.Reference(self.model), self.size)

    def sample(
        self, prompts: Prompts, uniforms: Tensor, temperature: float, greedy: bool = False
    ) -> Rollout:
        """As SeedModel's."""
        samples = sampling.sample(
            self.model, self.tokenizer, prompts[0], uniforms[0], temperature, greedy, self.sampled
        )
        rollout = rollout_of(samples)
        if self.model.computes_in_half:  # pi_old's log-probabilities are to be those of a pass
            with torch.no_grad():
                exact = sampling.in_batches(
                    lambda part: sampling.logprobs(self.model, part, temperature),
                    samples,
                    self.size,
                )
            rollout.logprobs.copy_(exact)
        return rollout

    def outputs(self, rollout: Rollout, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """As SeedModel's, of a micro-batch."""
        both = sampling.outputs(self.model, samples_of(rollout), temperature, entropy)
        return both[0].unsqueeze(0), both[1].unsqueeze(0)

    def logprobs(self, rollout: Rollout, temperature: float) -> Tensor:
        """As SeedModel's, of a micro-batch."""
        return self.outputs(rollout, temperature, entropy=False)[0]

    def scalars(self, rollout: Rollout) -> Tensor:
        """As SeedModel's; without gradients in micro-batches."""

        def of_part(part: sampling.Samples) -> Tensor:
            return sampling.scalars(self.model, part)[:, part.prompts.shape[1] - 1 :]

        return self._computed(of_part, rollout)

    def scores(self, rollout: Rollout) -> Tensor:
        """As SeedModel's; without gradients in micro-batches."""
        return self._computed(partial(sampling.scores, self.model), rollout)

    def _computed(self, function: Callable[[sampling.Samples], Tensor], rollout: Rollout) -> Tensor:
        samples = samples_of(rollout)
        if torch.is_grad_enabled():
            return function(samples).unsqueeze(0)
        return sampling.in_batches(function, samples, self.size).unsqueeze(0)

    def parts(self, batch: AnyRollout, rows: Tensor | None = None) -> Iterator[AnyRollout]:
        """Those of some rows [1, M] of all processes that are this one's and learned from, in
        micro-batches of like length. None: all rows of this process."""
        B = batch.lengths.shape[1]
        here = np.arange(B)
        if rows is not None:
            here = self.processes.mine(rows[0].cpu().numpy(), B * self.processes.size)
        mine = torch.from_numpy(here).to(self.device)
        mine = mine[batch.lengths[0, mine] > 0]
        widths, order = batch.lengths[0, mine].sort(stable=True)
        sizes = sampling.micro_batches(widths.cpu().numpy() + batch.prompts.shape[-1], self.size)
        for part in mine[order].split(sizes) if sizes else ():
            yield trimmed(batch[part.unsqueeze(0)])

    def optimizer(self) -> HubAdamW:
        """Of all weights that are trained."""
        return HubAdamW(models.trainable(self.model), self.processes)

    def tensors(self) -> dict[str, Tensor]:
        trained = models.trainable(self.model)
        return {f"parameter.{i}": p.detach().unsqueeze(0) for i, p in enumerate(trained)}

    def save(self, s: int, folder: Path) -> None:
        """As SeedModel's."""
        models.save(self.model, self.tokenizer, folder)


class HubReference(Kept):
    """What a model of transformers is kept close to."""

    def __init__(self, reference: models.Reference, size: int) -> None:
        self.reference, self.size = reference, size

    def of(self, seeds: Sequence[int]) -> Self:
        """Itself: there is only one seed."""
        return self

    def reset(self, policy: Any) -> None:
        """Take the present weights of the policy."""
        self.reference.reset(policy.model)

    @torch.no_grad()
    def logprobs(self, rollout: Rollout, temperature: float) -> Tensor:
        """Log pi_ref of each token, [1, B, T]; 0 after the last."""
        samples = samples_of(rollout)
        return self.reference.logprobs(samples, temperature, self.size).unsqueeze(0)

    def tensors(self) -> dict[str, Tensor]:
        weights = self.reference.model.parameters()
        return {f"parameter.{i}": p.detach().unsqueeze(0) for i, p in enumerate(weights)}


class HubAdamW(Kept):
    """PyTorch's AdamW without weight decay, of one model in all processes."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], processes: Processes) -> None:
        self.parameters, self.processes = parameters, processes
        self.adam = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0, fused=True)

    def step(self, lr: float | Tensor, max_grad_norm: float) -> Tensor:
        """As SeedAdamW's."""
        self.processes.sum_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_grad_norm)
        for group in self.adam.param_groups:
            group["lr"] = float(lr)
        if norm > 0 and norm.isfinite():
            self.adam.step()
        self.adam.zero_grad()
        return norm.to(self.processes.device).view(1)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{i}.{name}": x.unsqueeze(0)
            for i, state in self.adam.state_dict()["state"].items()
            for name, x in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """As Kept's; before its first step it has no state."""
        content = self.adam.state_dict()
        for key, x in tensors.items():
            number, _, name = key.partition(".")
            content["state"].setdefault(int(number), {})[name] = x[0]
        self.adam.load_state_dict(content)


AnyModel = SeedModel | HubModel


# ---- Loading -------------------------------------------------------------------------------


def load_policy(config: Any, run: Any) -> AnyModel:
    """What `--model` names, for all seeds of a run."""
    seeds = run.seeds if config.initial_per_seed else run.seeds[:1]
    models.make(config.model, config, run.processes, seeds)
    each = [models.load_model(config, run.device, run.processes, seed) for seed in seeds]
    model, tokenizer = each[0]
    if together(config):
        return SeedModel.of_models(of_seeds([x for x, _ in each], run), tokenizer)
    return HubModel(model, tokenizer, config, run.processes)


def of_seeds(each: Sequence[Any], run: Any) -> list[Any]:
    """A model for each seed of a run, from those of all seeds or the one that they share."""
    return [*each] * (len(run.seeds) // len(each))


def load_scalars(name: str, config: Any, policy: AnyModel, run: Any, what: str) -> AnyModel:
    """A model with a scalar head for each seed: `models.load_scalar`."""
    differ = name == tasks.REWARD or config.initial_per_seed
    seeds = run.seeds if differ else run.seeds[:1]
    models.make(name, config, run.processes, seeds)
    each = [
        models.load_scalar(name, config, run.device, run.processes, what, seed) for seed in seeds
    ]
    if isinstance(policy, SeedModel):
        return SeedModel.of_models(of_seeds(each, run), policy.tokenizer)
    return HubModel(each[0], policy.tokenizer, config, run.processes)


def load_teacher(config: Any, policy: AnyModel, run: Any) -> Any:
    """What `--teacher` names, for all seeds of a run, without gradients."""
    teacher = models.load_teacher(config, run.device, run.processes)
    if isinstance(policy, SeedModel):
        taught = SeedModel.of_models(of_seeds([teacher], run), policy.tokenizer)
        taught.llama.requires_grad_(False)
        return taught
    return HubModel(teacher, policy.tokenizer, config, run.processes).frozen()


def together(config: Any) -> bool:
    """Whether all seeds of a run are trained as one batch: of small Llamas, all of whose weights
    are trained in float32 by one process."""
    if config.lora_rank or config.gradient_checkpointing:
        return False
    if models.half_precision(config, resolve_device(config.device)) or Processes.expected() > 1:
        return False
    names = {getattr(config, name, "") for name in tasks.MODELS} - {"", *tasks.MADE}
    return all(os.path.isdir(name) and is_small_llama(name) for name in names)


def is_small_llama(name: str) -> bool:
    """Whether llama.py computes what transformers does with the model of a folder."""
    from transformers import GenerationConfig

    path = models.located(name, "--model")
    config, tokenizer = models.looked_at(name, "--model")
    own = config.eos_token_id  # what transformers goes by where there is no file of its own
    if (Path(path) / "generation_config.json").exists():
        own = GenerationConfig.from_pretrained(path).eos_token_id
    ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
    expected = {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "num_key_value_heads": getattr(config, "num_attention_heads", 0),
    }
    return (
        all(getattr(config, key, None) == x for key, x in expected.items())
        and config.rope_parameters.get("rope_type") == "default"
        and config.head_dim % 2 == 0
        and len(ends) == 1
    )
