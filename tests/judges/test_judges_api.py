"""Model judges against a server that answers well, badly, late, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.judges import (
    Judge,
    PairRequest,
    RubricItem,
    RubricRequest,
    StepRequest,
    make_judge,
)
from tasks.judges.api import RateLimit
from tasks.judges.base import JudgeError
from tasks.judges.budget import Budget, OverBudget
from tasks.judges.prices import find_price

pytest.importorskip("openai", reason="the extra `judges` is not installed")
pytest.importorskip("anthropic", reason="the extra `judges` is not installed")

RUBRIC = (RubricItem("title", "shows a title", 3.0), RubricItem("list", "shows a list"))
REQUEST = RubricRequest("Write a card.", "<h1>cat</h1> <p>dog</p>", RUBRIC)
GOOD = {
    "items": [{"name": "title", "score": 1.0}, {"name": "list", "score": 0.0}],
    "comments": [
        {"quote": "<h1>cat</h1>", "value": 0.5, "text": "a title"},
        {"quote": "not in the answer", "value": -1.0, "text": "made up"},
    ],
}
VENDORS = ("openai", "anthropic")


def body(name: str, reply: object, tokens: tuple[int, int] = (100, 20)) -> dict:
    """A well-formed response of a vendor that carries a reply (an object, or text that is no JSON)."""
    if name == "openai":
        text = reply if isinstance(reply, str) else json.dumps(reply)
        message = {"role": "assistant", "content": text}
        return {
            "id": "x", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
        }  # fmt: skip
    block = {"type": "tool_use", "id": "t", "name": "submit_judgement", "input": reply}
    if isinstance(reply, str):
        block = {"type": "text", "text": reply}
    return {
        "id": "x", "type": "message", "role": "assistant", "model": "m", "content": [block],
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }  # fmt: skip


def judge_at(vendor, name: str, **options) -> Judge:
    url = vendor.url + ("/v1" if name == "openai" else "")
    given = {
        "model": "m",
        "budget_usd": 1.0,
        "api_key": "k",
        "base_url": url,
        "retries": 2,
        "timeout_seconds": 20.0,
    }
    return make_judge(name, **{**given, **options})


@pytest.fixture(params=VENDORS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_good_reply_is_a_judgement(vendor, name: str) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD))
    judge = judge_at(vendor, name)
    assert isinstance(judge, Judge)
    (found,) = judge.rubric([REQUEST])
    assert found.score == 0.75
    assert found.items == {"title": 1.0, "list": 0.0}
    assert [c.quote for c in found.comments] == ["<h1>cat</h1>"]
    assert (found.status, found.usage.calls, found.usage.input_tokens, found.usage.output_tokens) == (
        "ok",
        1,
        100,
        20,
    )
    judge.close()


def test_steps_and_pairs(vendor, name: str) -> None:
    judge = judge_at(vendor, name)
    vendor.script = lambda request, n: (200, body(name, {"scores": [1, -1]}))
    assert judge.steps([StepRequest("1+1?", ("2", "3"))])[0].scores == (1.0, -1.0)
    vendor.script = lambda request, n: (200, body(name, {"winner": "second"}))
    assert judge.compare([PairRequest("a card", b"\x89PNG1", b"\x89PNG2")])[0].winner == "second"
    sent = json.dumps(vendor.requests[-1])
    assert 0 < sent.index("iVBORzE=") < sent.index("iVBORzI=")  # both pictures, in base64 and in order
    judge.close()


def test_structured_output_is_asked_for(vendor, name: str) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD))
    judge = judge_at(vendor, name)
    judge.rubric([REQUEST])
    (request,) = vendor.requests
    if name == "openai":
        schema = request["response_format"]["json_schema"]["schema"]
        assert request["response_format"]["json_schema"]["strict"] is True
        assert request["messages"][0]["role"] == "system"
    else:
        schema = request["tools"][0]["input_schema"]
        assert request["tool_choice"] == {"type": "tool", "name": "submit_judgement"}
    assert schema["required"] == ["items", "comments"]
    assert schema["additionalProperties"] is False
    judge.close()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_errors_are_retried_by_the_sdk(vendor, name: str, status: int) -> None:
    vendor.script = lambda request, n: (
        (200, body(name, GOOD)) if n == 3 else (status, {"error": {"message": "busy"}})
    )
    judge = judge_at(vendor, name)
    assert judge.rubric([REQUEST])[0].score == 0.75
    assert len(vendor.requests) == 3
    judge.close()


MISBEHAVIOUR = {
    "always busy": (429, {"error": {"message": "busy"}}),
    "always broken": (500, {"error": {"message": "broken"}}),
    "refused": (400, {"error": {"message": "no"}}),
    "no JSON": (200, b"<html>hello</html>"),
    "half of it": (-200, b'{"id": "x", "choices": [{'),
    "empty object": (200, {}),
    "a list": (200, []),
    "null": (200, None),
    "empty body": (200, b""),
}


@pytest.mark.parametrize("kind", MISBEHAVIOUR)
def test_a_failed_call_is_a_recorded_outcome(vendor, name: str, kind: str) -> None:
    vendor.script = lambda request, n: MISBEHAVIOUR[kind]
    judge = judge_at(vendor, name, retries=1)
    (found,) = judge.rubric([REQUEST])
    assert (found.score, found.status) == (None, "failed")
    assert found.reason
    assert "\n" not in found.reason
    assert judge.steps([StepRequest("p", ("a",))])[0].scores is None
    assert judge.compare([PairRequest("p", b"1", b"2")])[0].winner is None
    judge.close()


MALFORMED = {
    "prose": "I give it a 10!",
    "truncated": json.dumps(GOOD)[:-9],
    "fenced": f"```json\n{json.dumps(GOOD)}\n```",
    "too high": {"items": [{"name": "title", "score": 10}, {"name": "list", "score": 1}], "comments": []},
    "not a number": {
        "items": [{"name": "title", "score": "NaN"}, {"name": "list", "score": 1}],
        "comments": [],
    },
    "missing item": {"items": [{"name": "title", "score": 1}], "comments": []},
    "unknown item": {"items": [{"name": "title", "score": 1}, {"name": "charm", "score": 1}], "comments": []},
    "item twice": {"items": [{"name": "title", "score": 1}, {"name": "title", "score": 1}], "comments": []},
    "more fields": {**GOOD, "score": 10},
    "missing field": {"items": GOOD["items"]},
    "a number": "10",
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_is_asked_again_and_then_fails(vendor, name: str, kind: str) -> None:
    vendor.script = lambda request, n: (200, body(name, MALFORMED[kind]))
    judge = judge_at(vendor, name)
    (found,) = judge.rubric([REQUEST])
    assert (found.score, found.status, found.usage.calls) == (None, "failed", 2)
    assert "malformed" in found.reason
    vendor.script = lambda request, n: (200, body(name, GOOD if n == 4 else MALFORMED[kind]))
    assert judge.rubric([REQUEST])[0].score == 0.75
    judge.close()


def test_the_wrong_number_of_step_scores_fails(vendor, name: str) -> None:
    vendor.script = lambda request, n: (200, body(name, {"scores": [1]}))
    judge = judge_at(vendor, name)
    assert judge.steps([StepRequest("p", ("a", "b"))])[0].status == "failed"
    judge.close()


def test_a_slow_server_is_not_waited_for(vendor, name: str) -> None:
    vendor.script = lambda request, n: (0, b"")
    judge = judge_at(vendor, name, retries=0, timeout_seconds=0.2)
    (found,) = judge.rubric([REQUEST])
    assert found.status == "failed"
    assert "imed out" in found.reason or "imeout" in found.reason
    judge.close()


def test_no_server_at_all(name: str) -> None:
    judge = make_judge(name, model="m", budget_usd=1, api_key="k", base_url="http://127.0.0.1:9", retries=0)
    assert judge.rubric([REQUEST])[0].status == "failed"
    judge.close()


def test_one_failure_leaves_the_others(vendor, name: str) -> None:
    def script(request: dict, n: int) -> tuple[int, object]:
        bad = "poison" in json.dumps(request)
        return (400, {"error": {"message": "no"}}) if bad else (200, body(name, GOOD))

    vendor.script = script
    judge = judge_at(vendor, name, concurrency=4)
    requests = [RubricRequest("p", "poison" if i == 3 else f"answer {i}", RUBRIC) for i in range(8)]
    assert [j.status for j in judge.rubric(requests)] == ["ok"] * 3 + ["failed"] + ["ok"] * 4
    judge.close()


def test_the_cache_answers_the_second_time(vendor, name: str, tmp_path: Path) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD))
    for round_ in range(2):
        judge = judge_at(
            vendor, name, cache=tmp_path / "sub" / "judge.sqlite", price_usd=(1e3, 1e3), budget_usd=100.0
        )
        (found,) = judge.rubric([REQUEST])
        assert found.score == 0.75
        assert found.usage.cached == bool(round_)
        assert (found.usage.usd > 0) != bool(round_)
        judge.close()
    assert len(vendor.requests) == 1


def test_the_cache_is_keyed_by_judge_and_content(vendor, name: str, tmp_path: Path) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD))
    cache = tmp_path / "judge.sqlite"
    for model, answer in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        judge = judge_at(vendor, name, cache=cache, model=model)
        judge.rubric([RubricRequest("p", answer, RUBRIC)])
        judge.close()
    assert len(vendor.requests) == 3


def test_failures_are_not_cached(vendor, name: str, tmp_path: Path) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD if n > 2 else "prose"))
    judge = judge_at(vendor, name, cache=tmp_path / "judge.sqlite")
    assert judge.rubric([REQUEST])[0].status == "failed"
    assert judge.rubric([REQUEST])[0].status == "ok"
    judge.close()


def test_a_spoilt_cache_entry_is_asked_anew(vendor, name: str, tmp_path: Path) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD))
    judge = judge_at(vendor, name, cache=tmp_path / "judge.sqlite")
    judge.rubric([REQUEST])
    with judge.cache._connection:
        judge.cache._connection.execute("UPDATE replies SET reply = '{}'")
    assert judge.rubric([REQUEST])[0].usage.calls == 1
    judge.close()


def test_the_budget_is_hard(vendor, name: str) -> None:
    vendor.script = lambda request, n: (200, body(name, GOOD, tokens=(1_000_000, 0)))
    # each call costs a dollar; the most it can cost is set aside before
    judge = judge_at(vendor, name, budget_usd=2.5, price_usd=(1.0, 0.0), concurrency=1)
    found = judge.rubric([RubricRequest("p", f"answer {i}", RUBRIC) for i in range(6)])
    assert [j.status for j in found] == ["ok"] * 3 + ["over_budget"] * 3
    assert len(vendor.requests) == 3
    assert "raise judge.budget_usd" in found[-1].reason
    judge.close()


def test_nothing_is_sent_without_a_budget(vendor, name: str) -> None:
    judge = judge_at(vendor, name, budget_usd=0.0, price_usd=(1.0, 1.0))
    assert judge.rubric([REQUEST])[0].status == "over_budget"
    assert vendor.requests == []
    judge.close()


def test_a_failed_call_is_counted_at_its_worst() -> None:
    budget = Budget(1.0)
    with pytest.raises(KeyError), budget.reserve(0.6):
        raise KeyError
    assert budget.spent_usd == 0.6
    with pytest.raises(OverBudget), budget.reserve(0.6):
        pass
    with budget.reserve(0.3) as reservation:
        reservation.spent = 0.1
    assert budget.spent_usd == pytest.approx(0.7)


def test_reservations_at_the_same_time_do_not_exceed_the_limit() -> None:
    budget = Budget(1.0)
    with budget.reserve(0.6), pytest.raises(OverBudget), budget.reserve(0.6):
        pass


def test_rate_limit_spaces_calls() -> None:
    now = [0.0]
    rate = RateLimit(60.0, clock=lambda: now[0])
    assert [rate.delay() for _ in range(3)] == [0.0, 1.0, 2.0]
    now[0] = 10.0
    assert rate.delay() == 0.0
    assert RateLimit(0.0).delay() == 0.0


def test_prices() -> None:
    assert find_price("gpt-4o-mini-2024-07-18", None, None).cost(1_000_000, 1_000_000) == pytest.approx(0.75)
    assert find_price("claude-sonnet-4-20250514", None, None).output_usd == 15.0
    assert find_price("anything", "http://localhost:8000/v1", None).cost(9, 9) == 0.0
    assert find_price("anything", None, (1.0, 2.0)).output_usd == 2.0
    for unknown in ("gpt-4o-mini-audio", "claude-opus-4-99", "llama"):
        with pytest.raises(JudgeError, match=r"judge\.price_usd"):
            find_price(unknown, "https://example.org/v1", None)


@pytest.mark.parametrize(
    ("name_", "options", "match"),
    [
        ("opnai", {}, "did you mean 'openai'"),
        ("openai", {"model": "m"}, r"judge\.budget_usd"),
        ("openai", {"budget_usd": 1}, r"judge\.model"),
        ("openai", {"model": "gpt-4o", "budget_usd": -1, "api_key": "k"}, r"judge\.budget_usd"),
        (
            "openai",
            {"model": "gpt-4o", "budget_usd": 1, "api_key": "k", "concurrency": 0},
            r"judge\.concurrency",
        ),
        ("openai", {"model": "gpt-4o", "budget_usd": 1, "colour": 1}, r"judge\.colour"),
        (
            "openai",
            {"model": "gpt-4o", "budget_usd": 1, "api_key": "k", "cache": "/dev/null/x"},
            r"judge\.cache",
        ),
    ],
)
def test_wrong_options_are_one_clear_line(name_: str, options: dict, match: str) -> None:
    with pytest.raises(JudgeError, match=match) as caught:
        make_judge(name_, **options)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(JudgeError, match=r"judge\.api_key"):
        make_judge("openai", model="gpt-4o", budget_usd=1)
