"""Judges behind any endpoint that speaks OpenAI's chat completions: the vendor's, vLLM, llama.cpp and others."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from tasks.judges.api import ApiJudge, ApiOptions, CallFailed, Said
from tasks.judges.base import JudgeError
from tasks.judges.prompts import Prompt
from tasks.judges.replies import Reply, json_schema


class OpenAIJudge(ApiJudge):
    """A judge behind chat completions with JSON Schema output; the key comes from OPENAI_API_KEY if not given."""

    name: ClassVar[str] = "openai"

    def __init__(self, options: ApiOptions) -> None:
        super().__init__(options)
        try:
            import openai
        except ImportError as error:
            raise JudgeError(
                "judge='openai' needs the package openai: pip install 'creditbench[judges]'"
            ) from error
        key = options.api_key
        if key is None and options.base_url is not None:
            key = "none"  # local servers take any key, and the SDK insists on one
        self._errors = (openai.OpenAIError,)
        try:
            self._client = openai.OpenAI(
                api_key=key,
                base_url=options.base_url,
                max_retries=options.retries,
                timeout=options.timeout_seconds,
            )
        except openai.OpenAIError as error:
            raise JudgeError("judge.api_key is not set: set OPENAI_API_KEY, or judge.base_url") from error

    def call(self, prompt: Prompt, model: type[Reply]) -> Said:
        """See ApiJudge.call."""
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt.user}]
        for image in prompt.images:
            url = f"data:image/png;base64,{base64.b64encode(image).decode('ascii')}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        schema = {"name": model.__name__, "strict": True, "schema": json_schema(model)}
        arguments: dict[str, Any] = {
            "model": self.options.model,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": content}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            "max_completion_tokens": self.options.max_output_tokens,
        }
        if self.options.temperature is not None:
            arguments["temperature"] = self.options.temperature
        try:
            done = self._client.chat.completions.create(**arguments)
            text = done.choices[0].message.content or ""
            used = done.usage
        except (*self._errors, ValueError, TypeError, IndexError, AttributeError) as error:
            # beside its own errors the SDK lets through what a server that is not quite compatible provokes
            raise CallFailed(
                f"the judge gave no reply: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return Said(text, used.prompt_tokens if used else 0, used.completion_tokens if used else 0)

    def close(self) -> None:
        """See ApiJudge.close."""
        super().close()
        self._client.close()
