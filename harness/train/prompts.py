"""Prompts as token ids: the tokenizer's chat template where it has one, plain text otherwise."""

from __future__ import annotations

from typing import Any

from harness.errors import UserError


class PromptCodec:
    """Encodes prompts and knows the tokens that end an answer."""

    def __init__(self, tokenizer: Any, *, eos_ids: list[int] | None = None, context: int = 0) -> None:
        if tokenizer.eos_token_id is None:
            raise UserError("model.name: its tokenizer has no eos_token; set one, or choose another model")
        self.tokenizer = tokenizer
        self.eos_ids = sorted({tokenizer.eos_token_id, *(eos_ids or [])})
        pad = tokenizer.pad_token_id
        # padding is masked everywhere, so the end token can stand in where a tokenizer has none
        self.pad_id: int = self.eos_ids[0] if pad is None else pad
        self.context = context

    def encode(self, prompt: str, *, room: int = 0) -> list[int]:
        """Token ids of a prompt, ready for an answer; UserError when `room` more tokens do not fit."""
        if self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            ids = list(
                self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=True
                )["input_ids"]
            )
        else:
            ids = self.tokenizer(prompt)["input_ids"]
        if self.context and len(ids) + room > self.context:
            raise UserError(
                f"train.max_completion_tokens={room}: a prompt of {len(ids)} tokens and its answer exceed the model's "
                f"context of {self.context}; lower it to {max(0, self.context - len(ids))} or less"
            )
        return ids
