"""The policy's weights to a vLLM engine through vLLM's weight-transfer API; imports vLLM.

Four phases: init, start, update, finish (docs.vllm.ai/en/v0.32.0/training/weight_transfer). On CUDA the backend
is vLLM's own `ipc`: the engine's process maps the trainer's tensors. For a CPU vLLM ships none; the backend
`in-process` below keeps the same phases, and vLLM's layer-wise reload, with tensors of the same process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCWeightTransferEngine

from harness.train.adapters import merged_state

IN_PROCESS = "in-process"


def full_state(model: Any, *, untied: bool = False) -> dict[str, Tensor]:
    """The whole model by the names of its checkpoint, adapters merged into copies.

    A head that is tied to the embedding has no name of its own, except when `untied`.
    """
    state = merged_state(model)
    if model.config.tie_word_embeddings and not untied:
        head = model.get_output_embeddings()
        own = [name for name, module in model.named_modules() if module is head]
        state = {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] not in own}
    return state


class PolicySource(WeightSource):
    """The policy's weights as they are now, in the engine's precision."""

    def __init__(self, model: Any, dtype: torch.dtype, *, untied: bool) -> None:
        self.model = model
        self.dtype = dtype
        self.untied = untied

    def metadata(self) -> list[ParamMeta]:
        """Names, precision and shapes of what iteration yields."""
        return [ParamMeta(name, self.dtype, tuple(t.shape)) for name, t in self._state().items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """A fresh pass over (name, tensor)."""
        for name, tensor in self._state().items():
            yield name, tensor.to(self.dtype)

    def _state(self) -> dict[str, Tensor]:
        return full_state(self.model, untied=self.untied)


class EngineClient:
    """The four phases as calls of a `vllm.LLM` of this process."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Opens the channel."""
        self.engine.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begins one hand-over."""
        self.engine.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        """Hands over some tensors."""
        self.engine.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends the hand-over: the engine repacks what it keeps in other layouts."""
        self.engine.finish_weight_update(weight_version)


@dataclass
class InProcessUpdate(WeightTransferUpdateInfo):
    """One hand-over's tensors."""

    weights: list[tuple[str, Tensor]]


class InProcessEngine(IPCWeightTransferEngine):
    """The engine's side: start and finish as for `ipc`, the tensors as they are."""

    update_info_cls = InProcessUpdate  # type: ignore[assignment]

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads the tensors; there is no device to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        """Loads the tensors under the names of the checkpoint."""
        self.model.load_weights(update_info.weights)


@dataclass
class InProcessInit(TrainerInitInfo):
    """The trainer's side has nothing to agree on."""

    backend: ClassVar[str] = IN_PROCESS


class InProcessTrainer(TrainerWeightTransferEngine[InProcessInit]):
    """The trainer's side."""

    init_info_cls = InProcessInit

    @classmethod
    def trainer_init(
        cls, init_info: InProcessInit, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        """Opens the channel."""
        client.init_weight_transfer_engine({})
        return cls(client=client, source=source)

    def send_weights(self) -> None:
        """One hand-over of the whole source."""
        assert self.source is not None
        self.client.start_weight_update()
        self.client.update_weights({"weights": list(self.source)})
        self.client.finish_weight_update()


WeightTransferEngineFactory.register_engine(IN_PROCESS, InProcessEngine)
WeightTransferTrainerFactory.register_engine(IN_PROCESS, InProcessTrainer)


def open_transfer(engine: Any, source: PolicySource, *, backend: str) -> TrainerWeightTransferEngine[Any]:
    """The channel from the policy to an engine that was built for `backend`; `send_weights()` hands over."""
    # packed: copies in chunks of a gigabyte, so that no second model stands on the card
    info = InProcessInit(rank=0) if backend == IN_PROCESS else IPCTrainerInitInfo(rank=0, packed=True)
    return WeightTransferTrainerFactory.trainer_init(info, client=EngineClient(engine), source=source)
