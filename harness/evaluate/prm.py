"""A process-reward model from the Hub as a judge of steps, such as Qwen2.5-Math-PRM-7B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.errors import UserError
from harness.train.load import device_of
from tasks.aime.judges import StepItem, StepVerdict

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class PrmJudge:
    """Scores each step by 2 p - 1, where p is the model's probability that the step is right.

    The model reads the chat with a separator token after every step, and gives two logits (wrong, right) at
    each separator. Source: the model card of Qwen2.5-Math-PRM-7B. Special tokens within the text of a problem or
    a step are taken out: an answer cannot add separators or turns. A step beyond `max_tokens` gets no verdict.
    """

    name = "prm"

    def __init__(
        self, model: Any, tokenizer: Any, *, separator: str = "<extra_0>", max_tokens: int = 4096
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.separator = separator
        self.max_tokens = max_tokens
        ids = tokenizer.encode(separator, add_special_tokens=False)
        if len(ids) != 1:
            raise UserError(
                f"judge_options.separator={separator!r} is not one token of this model: name its own"
            )
        self.separator_id: int = ids[0]
        specials = {
            *tokenizer.all_special_tokens,
            separator,
            *map(str, tokenizer.added_tokens_decoder.values()),
        }
        self.special_tokens = sorted(specials, key=len, reverse=True)

    def _plain(self, text: str) -> str:
        """Text without special tokens, also none that forms when others are taken out."""
        before = ""
        while before != text:
            before = text
            for token in self.special_tokens:
                text = text.replace(token, "")
        return text

    def _ids(self, item: StepItem) -> torch.Tensor:
        steps = [self._plain(item.answer[start:end]) for start, end in item.steps]
        chat = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": self._plain(item.problem)},
            {"role": "assistant", "content": "".join(step + self.separator for step in steps)},
        ]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][: self.max_tokens]
        return torch.tensor([ids], device=next(self.model.parameters()).device)

    @torch.no_grad()
    def judge(self, items: Sequence[StepItem]) -> list[list[StepVerdict]]:
        """See tasks.aime.judges.StepJudge.judge."""
        return [self._judge_one(item) if item.steps else [] for item in items]

    def _judge_one(self, item: StepItem) -> list[StepVerdict]:
        ids = self._ids(item)
        logits = self.model(input_ids=ids)[0][0].float()
        right = torch.softmax(logits, dim=-1)[ids[0] == self.separator_id][:, 1]
        values = (2 * right - 1).tolist()[: len(item.steps)]
        return [StepVerdict(value) for value in values] + [StepVerdict(None)] * (
            len(item.steps) - len(values)
        )

    def close(self) -> None:
        """Nothing to end."""


def load(
    model: str = "Qwen/Qwen2.5-Math-PRM-7B",
    revision: str = "main",
    device: str = "auto",
    dtype: str = "bfloat16",
    separator: str = "<extra_0>",
    trust_remote_code: bool = False,
) -> PrmJudge:
    """The judge of `judge=prm`; UserError when the model cannot be loaded.

    Such models often bring code of their own: it runs only with `trust_remote_code`, which wants a pinned
    `revision`.
    """
    from transformers import AutoModel, AutoTokenizer

    if trust_remote_code and len(revision) != 40:
        raise UserError(
            f"judge_options.revision={revision!r}: code from the Hub needs a full pinned revision"
        )
    place = device_of(device)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
        found = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype), **options)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"judge_options.model={model!r} cannot be loaded ({first}); cache it first, and set trust_remote_code "
            "if it brings its own code"
        ) from error
    return PrmJudge(found.to(place).eval(), tokenizer, separator=separator)
