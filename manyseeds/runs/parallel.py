"""Data-parallel training of one model, started by `accelerate launch` or `torchrun`.

Every process draws the random numbers of the whole batch and computes its share of the rows. A loss
is a sum of weighted terms over the batch, so the losses and gradients of all processes add up to
those of the batch. A single process needs no communication.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from manyseeds.errors import UsageError

# What `accelerate launch` may ask for that is not done here, and who does it.
UNSUPPORTED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def refuse_settings() -> None:
    """Raise UsageError for settings of `accelerate launch` that would do nothing here."""
    for name, what in UNSUPPORTED.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise UsageError(f"accelerate: {what} is not done here; TRL and verl do it")
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("", "no"):
        raise UsageError(f"accelerate: --mixed_precision {precision}: use --dtype of the script")
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() not in ("", "no"):
        raise UsageError("accelerate: --dynamo_backend is not done here; TRL does it")


class Processes:
    """The group of processes that this one belongs to; rank 0, the main one, keeps the record."""

    VARIABLES = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )

    def __init__(self, device: torch.device | str = "cpu") -> None:
        refuse_settings()
        self.size = self.expected()
        self.rank = int(os.environ.get("RANK", "0")) if self.size > 1 else 0
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.size > 1:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.size > 1 and not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            # The others wait for the main process while it writes or makes a model.
            dist.init_process_group(backend, timeout=timedelta(hours=6))

    @staticmethod
    def expected() -> int:
        """How many processes this one was started with."""
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def main(self) -> bool:
        """Whether this is the process that keeps the record."""
        return self.rank == 0

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through the block before the others."""
        if self.size > 1 and not self.main:
            dist.barrier()
        yield
        if self.size > 1 and self.main:
            dist.barrier()

    def share(self, n: int) -> slice:
        """The rows of a batch of n that are this process's; UsageError unless `size` divides n."""
        if n % self.size:
            raise UsageError(f"--num_processes {self.size}: does not divide a batch of {n}")
        each = n // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def some(self, n: int) -> slice:
        """The rows of a batch of n that are this process's; about as many as any other's."""
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def mine(self, rows: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Which of some rows of a batch of n are this process's, counted from its first one."""
        share = self.share(n)
        return rows[(rows >= share.start) & (rows < share.stop)] - share.start

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in each of them."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, of equal shape, one after another along the first axis."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def gather_lists(self, items: list[Any]) -> list[Any]:
        """The lists of all processes, one after another, in each of them."""
        if self.size == 1:
            return items
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes, in each of them, in one message."""
        if self.size == 1:
            return
        gradients = []
        for p in parameters:
            if p.grad is None:  # another process may have one
                p.grad = torch.zeros_like(p)
            gradients.append(p.grad)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, content: Any = None) -> Any:
        """What the main process gives, in each of them."""
        box = [content]
        if self.size > 1:
            dist.broadcast_object_list(box)
        return box[0]
