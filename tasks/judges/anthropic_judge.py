"""Judges behind Anthropic's messages API; the reply is the input of a tool that the model must call."""

from __future__ import annotations

import base64
import json
from typing import Any, ClassVar

from tasks.judges.api import ApiJudge, ApiOptions, CallFailed, Said
from tasks.judges.base import JudgeError
from tasks.judges.prompts import Prompt
from tasks.judges.replies import Reply, json_schema

TOOL = "submit_judgement"


class AnthropicJudge(ApiJudge):
    """A judge behind the messages API; the key comes from ANTHROPIC_API_KEY if not given."""

    name: ClassVar[str] = "anthropic"

    def __init__(self, options: ApiOptions) -> None:
        super().__init__(options)
        try:
            import anthropic
        except ImportError as error:
            raise JudgeError(
                "judge='anthropic' needs the package anthropic: pip install 'creditbench[judges]'"
            ) from error
        self._errors = (anthropic.AnthropicError,)
        self._client = anthropic.Anthropic(
            api_key=options.api_key,
            base_url=options.base_url,
            max_retries=options.retries,
            timeout=options.timeout_seconds,
        )

    def call(self, prompt: Prompt, model: type[Reply]) -> Said:
        """See ApiJudge.call."""
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt.user}]
        for image in prompt.images:
            data = base64.b64encode(image).decode("ascii")
            source = {"type": "base64", "media_type": "image/png", "data": data}
            content.append({"type": "image", "source": source})
        arguments: dict[str, Any] = {
            "model": self.options.model,
            "max_tokens": self.options.max_output_tokens,
            "system": prompt.system,
            "messages": [{"role": "user", "content": content}],
            "tools": [
                {"name": TOOL, "description": "Hands in the judgement.", "input_schema": json_schema(model)}
            ],
            "tool_choice": {"type": "tool", "name": TOOL},
        }
        if self.options.temperature is not None:
            arguments["extra_body"] = {"temperature": self.options.temperature}
        try:
            done = self._client.messages.create(**arguments)
            found = [block.input for block in done.content if block.type == "tool_use" and block.name == TOOL]
            used = done.usage
            tokens = (int(used.input_tokens), int(used.output_tokens))
        except (*self._errors, ValueError, TypeError, AttributeError) as error:
            # beside its own errors the SDK lets through what a server that is not quite compatible provokes
            raise CallFailed(
                f"the judge gave no reply: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return Said(json.dumps(found[0]) if found else "", *tokens)

    def close(self) -> None:
        """See ApiJudge.close."""
        super().close()
        self._client.close()
