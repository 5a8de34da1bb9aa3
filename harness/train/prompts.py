"""Prompts as token ids: the tokenizer's chat template where it has one, plain text otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UserError
from harness.models import PRESETS
from harness.spec import ModelSpec

FIXED_DAY = "{% macro strftime_now(format) %}08 July 2025{% endmacro %}"
"""Put before chat templates that write the date (SmolLM3's does): a prompt must not depend on the day."""


class PromptCodec:
    """Encodes prompts and knows the tokens that end an answer."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos_ids: list[int] | None = None,
        context: int = 0,
        thinking: bool | None = None,
    ) -> None:
        """`thinking` sets the template's switch `enable_thinking`; None leaves it as the template has it."""
        if tokenizer.eos_token_id is None:
            raise UserError("model.name: its tokenizer has no eos_token; set one, or choose another model")
        self.tokenizer = tokenizer
        self.eos_ids = sorted({tokenizer.eos_token_id, *(eos_ids or [])})
        pad = tokenizer.pad_token_id
        # padding is masked everywhere, so the end token can stand in where a tokenizer has none
        self.pad_id: int = self.eos_ids[0] if pad is None else pad
        self.context = context
        template = tokenizer.chat_template or ""
        if thinking is not None and "enable_thinking" not in template:
            raise UserError(
                f"model.thinking={'on' if thinking else 'off'}: this model's chat template has no such switch; use "
                "model.thinking=preset"
            )
        self._switches: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        if "strftime_now" in template:
            self._switches["chat_template"] = FIXED_DAY + template

    def encode(self, prompt: str, *, room: int = 0, shots: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Token ids of a prompt after its solved `shots`; UserError when `room` more tokens do not fit."""
        if self.tokenizer.chat_template:
            turns = [(("user", asked), ("assistant", answer)) for asked, answer in shots]
            messages = [{"role": r, "content": c} for pair in turns for r, c in pair]
            messages.append({"role": "user", "content": prompt})
            ids = list(
                self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=True, **self._switches
                )["input_ids"]
            )
        else:
            before = "".join(f"{asked}{answer}\n\n" for asked, answer in shots)
            ids = self.tokenizer(before + prompt)["input_ids"]
        if self.context and len(ids) + room > self.context:
            raise UserError(
                f"train.max_completion_tokens={room}: a prompt of {len(ids)} tokens and its answer exceed the model's "
                f"context of {self.context}; lower it to {max(0, self.context - len(ids))} or less"
            )
        return ids


def end_tokens(name: str, tokenizer: Any, generation: Any) -> list[int]:
    """Ids that end an answer: those of the model's generation config and of its preset.

    UserError when the tokenizer does not know a preset's stop token.
    """
    listed = getattr(generation, "eos_token_id", None)
    found = {listed} if isinstance(listed, int) else set(listed or ())
    preset = PRESETS.get(name)
    vocabulary: Mapping[str, int] = tokenizer.get_vocab() if preset and preset.stop_tokens else {}
    for token in preset.stop_tokens if preset else ():
        if token not in vocabulary:
            raise UserError(
                f"model.name={name!r}: its tokenizer has no {token!r}, which ends its answers; restore the tokenizer"
            )
        found.add(vocabulary[token])
    return sorted(found)


def codec_of(spec: ModelSpec, tokenizer: Any, config: Any, generation: Any) -> PromptCodec:
    """The codec of a model: its end tokens, its context limit, and whether it thinks aloud."""
    preset = PRESETS.get(spec.name)
    thinking = {"on": True, "off": False}.get(spec.thinking, preset.thinking if preset else None)
    return PromptCodec(
        tokenizer,
        eos_ids=end_tokens(spec.name, tokenizer, generation),
        context=getattr(config, "max_position_embeddings", 0) or 0,
        thinking=thinking,
    )
