"""What model judges share: prompts, cache, budget, concurrency, rate limit, and belief only in checked replies."""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from tasks.judges.base import (
    Comment,
    JudgeError,
    Judgement,
    PairRequest,
    Preference,
    RubricRequest,
    Status,
    StepJudgement,
    StepRequest,
    Usage,
    weighted_score,
)
from tasks.judges.budget import Budget, OverBudget
from tasks.judges.cache import ReplyCache
from tasks.judges.prices import find_price
from tasks.judges.prompts import (
    PROMPT_VERSION,
    Prompt,
    pair_prompt,
    rubric_prompt,
    steps_prompt,
    suspicions,
)
from tasks.judges.replies import PairReply, Reply, RubricReply, StepsReply, parse

T = TypeVar("T")
R = TypeVar("R")
IMAGE_TOKENS = 2_000
"""Set aside for one screenshot."""


@dataclass(frozen=True)
class ApiOptions:
    """Options of a model judge.

    `budget_usd` is a hard limit; `price_usd` gives dollars for a million input and output tokens where the
    table has no entry; `requests_per_minute` 0 means no limit; `retries` are the vendor SDK's;
    `attempts` counts calls for one judgement when a reply cannot be read; `temperature` None is the model's
    own (some models take no other).
    """

    model: str
    budget_usd: float
    base_url: str | None = None
    api_key: str | None = None
    price_usd: tuple[float, float] | None = None
    cache: Path | str | None = None
    concurrency: int = 8
    requests_per_minute: float = 0.0
    retries: int = 4
    timeout_seconds: float = 60.0
    max_output_tokens: int = 1_000
    attempts: int = 2
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name, low in (("concurrency", 1), ("attempts", 1), ("retries", 0), ("max_output_tokens", 1)):
            if getattr(self, name) < low:
                raise JudgeError(f"judge.{name}={getattr(self, name)!r}: use {low} or more")


@dataclass(frozen=True)
class Said:
    """The raw reply of one call, and its tokens."""

    text: str
    input_tokens: int
    output_tokens: int


class CallFailed(Exception):
    """A call that gave no reply, after the SDK's retries."""


class RateLimit:
    """Spaces calls evenly; 0 calls a minute means no limit."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap = 60.0 / per_minute if per_minute > 0 else 0.0
        self._clock = clock
        self._next = 0.0
        self._lock = threading.Lock()

    def delay(self) -> float:
        """Seconds to wait before the next call, which is thereby booked."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._gap
            return start - now


@dataclass(frozen=True)
class Outcome:
    """A checked reply, or the reason why there is none."""

    reply: Reply | None
    status: Status
    reason: str
    usage: Usage


class ApiJudge(ABC):
    """A model behind an API; a subclass only makes the call."""

    name: ClassVar[str]

    def __init__(self, options: ApiOptions) -> None:
        self.options = options
        self.price = find_price(options.model, options.base_url, options.price_usd)
        self.budget = Budget(options.budget_usd)
        self.cache = None if options.cache is None else ReplyCache(options.cache)
        self._rate = RateLimit(options.requests_per_minute)
        self._pool = ThreadPoolExecutor(max_workers=options.concurrency, thread_name_prefix="judge")

    @abstractmethod
    def call(self, prompt: Prompt, model: type[Reply]) -> Said:
        """Sends one prompt, asking for that reply; CallFailed after the SDK's retries."""

    def rubric(self, requests: Sequence[RubricRequest]) -> list[Judgement]:
        """See Judge.rubric."""
        return self._map(self._rubric, requests)

    def steps(self, requests: Sequence[StepRequest]) -> list[StepJudgement]:
        """See Judge.steps."""
        return self._map(self._steps, requests)

    def compare(self, requests: Sequence[PairRequest]) -> list[Preference]:
        """See Judge.compare."""
        return self._map(self._compare, requests)

    def close(self) -> None:
        """Ends the threads and closes the cache."""
        self._pool.shutdown(wait=True)
        if self.cache is not None:
            self.cache.close()

    def _map(self, function: Callable[[T], R], requests: Sequence[T]) -> list[R]:
        return list(self._pool.map(function, requests))

    def _rubric(self, request: RubricRequest) -> Judgement:
        names = {item.name for item in request.rubric}

        def complete(reply: Reply) -> str:
            assert isinstance(reply, RubricReply)
            given = [item.name for item in reply.items]
            right = set(given) == names and len(given) == len(names)
            return "" if right else "the judge's reply is malformed: items: not the items of the rubric"

        done = self._ask(rubric_prompt(request), RubricReply, complete)
        flags = suspicions(request.answer)
        if not isinstance(done.reply, RubricReply):
            return Judgement(None, status=done.status, reason=done.reason, flags=flags, usage=done.usage)
        items = {item.name: item.score for item in done.reply.items}
        comments = tuple(
            Comment(c.quote, c.value, c.text)
            for c in done.reply.comments
            if c.quote and c.quote in request.answer
        )
        score = weighted_score(request.rubric, items)
        return Judgement(score, items, comments, flags=flags, usage=done.usage)

    def _steps(self, request: StepRequest) -> StepJudgement:
        def complete(reply: Reply) -> str:
            assert isinstance(reply, StepsReply)
            right = len(reply.scores) == len(request.steps)
            return (
                "" if right else f"the judge's reply is malformed: scores: not {len(request.steps)} of them"
            )

        done = self._ask(steps_prompt(request), StepsReply, complete)
        flags = tuple(dict.fromkeys(flag for step in request.steps for flag in suspicions(step)))
        scores = tuple(done.reply.scores) if isinstance(done.reply, StepsReply) else None
        return StepJudgement(scores, done.status, done.reason, flags, done.usage)

    def _compare(self, request: PairRequest) -> Preference:
        done = self._ask(pair_prompt(request), PairReply, lambda reply: "")
        winner = done.reply.winner if isinstance(done.reply, PairReply) else None
        return Preference(winner, done.status, done.reason, done.usage)

    def _key(self, prompt: Prompt) -> str:
        judge = f"{self.name}\n{self.options.model}\n{self.options.base_url}\n{self.options.temperature}"
        return hashlib.sha256(f"{judge}\n{PROMPT_VERSION}\n{prompt.key}".encode()).hexdigest()

    def _ask(self, prompt: Prompt, model: type[Reply], complete: Callable[[Reply], str]) -> Outcome:
        """A reply from the cache or the model; tried again when it cannot be read."""
        key = self._key(prompt)
        known = self.cache.get(key) if self.cache is not None else None
        if known is not None and isinstance(reply := parse(model, known), Reply) and not complete(reply):
            return Outcome(reply, "ok", "", Usage(cached=True))
        total, reason = Usage(), ""
        for _ in range(self.options.attempts):
            try:
                said, usage = self._paid_call(prompt, model)
            except OverBudget as error:
                return Outcome(None, "over_budget", str(error), total)
            except CallFailed as error:
                return Outcome(None, "failed", str(error), _add(total, Usage(calls=1)))
            total = _add(total, usage)
            answer = parse(model, said.text)
            reason = answer if isinstance(answer, str) else complete(answer)
            if isinstance(answer, Reply) and not reason:
                if self.cache is not None:
                    self.cache.put(key, f"{self.name}/{self.options.model}", said.text)
                return Outcome(answer, "ok", "", total)
        return Outcome(None, "failed", reason, total)

    def _paid_call(self, prompt: Prompt, model: type[Reply]) -> tuple[Said, Usage]:
        # a token is at least one byte: the bytes of the prompt bound its tokens
        most = len((prompt.system + prompt.user).encode("utf-8", "surrogatepass")) + 2_000
        most += IMAGE_TOKENS * len(prompt.images)
        worst = self.price.cost(most, self.options.max_output_tokens)
        with self.budget.reserve(worst) as reservation:
            time.sleep(self._rate.delay())
            said = self.call(prompt, model)
            reservation.spent = self.price.cost(said.input_tokens, said.output_tokens)
        return said, Usage(1, said.input_tokens, said.output_tokens, reservation.spent)


def _add(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.calls + b.calls,
        a.input_tokens + b.input_tokens,
        a.output_tokens + b.output_tokens,
        a.usd + b.usd,
    )
