"""The task: examples, scores, recipes, judges, options."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.aime import AimeOptions, AimeTask
from tasks.aime.generate import RUBRIC, corrupt_chain, reference_chain
from tasks.aime.judges import ModelStepJudge, StepItem, StepVerdict, load_judge
from tasks.aime.recipes import RECIPES
from tasks.base import TASKS, Answer, Example, Score, Span, Task
from tasks.judges.base import StepJudgement, Usage
from tasks.judges.scripted import ScriptedJudge

PROBLEM = Example("p", "3+4, then times 2", {"answer": 14}, {"without_rubric": "3+4, times 2"})
RIGHT = "Step 1: 3+4=7.\nStep 2: 7*2=14.\n\\boxed{14}"
SLIP = "Step 1: 3+4=8.\nStep 2: 8*2=16.\n\\boxed{16}"


def score(text, finished=True, **options):
    return AimeTask(**options).score([PROBLEM], [Answer(text, finished)])[0]


def local(recipe, text, finished=True):
    answer = Answer(text, finished)
    return RECIPES[recipe](answer, AimeTask().score([PROBLEM], [answer])[0])


def test_the_task_keeps_its_contract():
    task = AimeTask()
    assert isinstance(task, Task)
    assert TASKS["aime"] is AimeTask
    assert task.default_recipe in task.recipes
    assert task.primary_metric in score(RIGHT).metrics
    assert task.size("train") is None
    example = task.example("test", 3)
    assert example == AimeTask(level=2).example("test", 3)
    assert example.prompt.strip().endswith(RUBRIC)
    assert {"without_rubric", "privileged", "hint_1"} <= set(example.variants)
    with pytest.raises(ValueError, match="split='dev'"):
        task.example("dev", 0)


def test_importing_the_task_is_cheap():
    code = (
        "import sys, tasks.aime; print([m for m in ('torch','numpy','datasets','sympy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_right_chain_a_slip_and_a_cut_one():
    good, bad, cut = score(RIGHT), score(SLIP), score(RIGHT, finished=False)
    assert (good.outcome, good.correct, good.status) == (1.0, True, "correct")
    assert [s.value for s in good.spans] == [1.0, 1.0]
    assert good.metrics["step_validity"] == 1.0
    assert (bad.outcome, bad.status) == (0.0, "wrong")
    assert [s.value for s in bad.spans] == [-1.0, 1.0]
    assert bad.metrics["step_validity"] == 0.5
    assert len(bad.steps) == 3
    (fault,) = bad.diagnostics
    assert SLIP[fault.start : fault.end] == "3+4=8"
    assert (cut.correct, cut.status, cut.metrics["truncated"]) == (False, "truncated", 1.0)
    assert score("nothing").metrics["boxed"] == 0.0


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 5), st.integers(0, 99))
def test_reference_chains_are_right_and_corrupted_ones_rarely(index, level, seed):
    task = AimeTask(level=level)
    example = task.example("train", index)
    chain = reference_chain(example)
    found = task.score([example], [Answer(chain)])[0]
    assert found.correct
    assert found.metrics["step_validity"] == 1.0
    assert found.metrics["format"] == 1.0
    corrupted = corrupt_chain(chain, random.Random(seed))
    again = task.score([example], [Answer(corrupted)])[0]
    assert again.correct == corrupted.endswith(chain.rsplit("\n", 1)[1])


@pytest.mark.parametrize("recipe", RECIPES)
@given(st.text(alphabet="1+=2 \n\\boxed{}", max_size=60), st.booleans())
def test_recipes_are_bounded_and_stay_inside_the_answer(recipe, text, finished):
    found = local(recipe, text, finished)
    assert -1 <= found.end_token <= 1
    for span in found.spans:
        assert 0 <= span.start <= span.end <= len(text)
        assert -1 <= span.value <= 1


def test_recipes_place_a_step_score():
    assert [(s.start, s.end, s.value) for s in local("broadcast", SLIP).spans] == [
        (0, 14, -1.0),
        (15, 30, 1.0),
    ]
    assert [(s.start, s.end, s.value) for s in local("step_end", SLIP).spans] == [
        (13, 14, -1.0),
        (29, 30, 1.0),
    ]
    assert [s.value for s in local("spread", SLIP).spans] == [-1 / 14, 1 / 15]
    assert [(s.start, s.value) for s in local("false_steps", SLIP).spans] == [(0, 0.0), (0, -1.0)]
    assert local("none", SLIP).spans == ()


def test_first_error_to_end_blames_from_the_first_false_step():
    late = SLIP.replace("3+4=8", "3+4=7").replace("8*2=16", "7*2=16")
    spans = local("first_error_to_end", late).spans
    assert [(late[s.start : s.end][:6], s.value) for s in spans] == [("Step 1", 0.0), ("Step 2", -1.0)]
    assert local("first_error_to_end", RIGHT).spans == ()
    cut = local("first_error_to_end", RIGHT, finished=False)
    assert [s.value for s in cut.spans] == [-1.0]
    assert cut.end_token == -1.0
    stopped = local("first_error_to_end", "Step 1: 3+4=7.")
    assert stopped.end_token == -1.0
    miscopied = local("first_error_to_end", "Step 1: 3+5=8.\n\\boxed{8}")
    assert [s.value for s in miscopied.spans] == [0.0, -1.0]
    assert miscopied.end_token == 0.0
    assert local("first_error_to_end", "").end_token == -1.0


class Flat:
    name = "flat"

    def judge(self, items):
        return [[StepVerdict(7.0) for _ in item.steps] for item in items]

    def close(self):
        self.closed = True


def test_any_judge_can_score_steps_and_is_bounded():
    judge = Flat()
    task = AimeTask(step_judge=judge)
    found = task.score([PROBLEM], [Answer(RIGHT)])[0]
    assert found.spans == tuple(Span(a, b, 1.0, "flat") for a, b in found.steps)
    task.close()
    assert judge.closed
    assert score(RIGHT, judge="none").spans == ()


def test_judges_load_by_name_or_path():
    assert load_judge("none") is None
    assert load_judge("arithmetic").name == "arithmetic"
    assert load_judge("tasks.aime.judges:ArithmeticJudge").name == "arithmetic"
    with pytest.raises(ValueError, match="judge_options"):
        load_judge("arithmetic", model="x")
    for wrong in ("nope", "tasks.aime.judges:Nope", "no_such_module:x"):
        with pytest.raises(ValueError, match="judge="):
            load_judge(wrong)


def test_a_judge_of_the_judges_package_scores_steps():
    judge = ScriptedJudge(grade_step=lambda problem, step: -1.0 if "8" in step else 0.5)
    found = AimeTask(step_judge=ModelStepJudge(judge)).score([PROBLEM], [Answer(SLIP)])[0]
    assert [s.value for s in found.spans] == [-1.0, -1.0, 0.5]
    assert {s.source for s in found.spans} == {"scripted"}
    assert score(SLIP, judge="scripted").spans[0].value == 0.0


class Silent(ScriptedJudge):
    def steps(self, requests):
        usage = Usage(calls=1, usd=0.25)
        return [StepJudgement(None, "failed", "no reply", usage=usage)] + [StepJudgement((1.0,))] * (
            len(requests) - 1
        )


def test_a_failed_judgement_is_no_verdict():
    judge = ModelStepJudge(Silent())
    items = [StepItem("p", "a\nb", ((0, 1), (2, 3)))] * 2
    assert judge.judge(items) == [[StepVerdict(None)] * 2] * 2  # none, and one of the wrong length
    assert (judge.failed, judge.calls, judge.usd) == (2, 1, 0.25)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"answers": "real"}, "answers='real'"), ({"level": 7}, "level=7"), ({"steps": "word"}, "steps='word'")],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        AimeOptions(**options)


def test_what_needs_math_verify_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="math-verify is not installed"):
        AimeTask(second_opinion=True)
    task = AimeTask(answers="math")
    with pytest.raises(ValueError, match="math-verify is not installed"):
        task.score([PROBLEM], [Answer(RIGHT)])
    records = [
        {"id": "a", "response": "\\boxed{\\dfrac{5}{9}}", "gold": "\\frac59"},
        {"id": "b", "response": "\\boxed{2\\sqrt{3}}", "gold": "\\sqrt{12}"},
    ]
    rows = list(task.score_records(records))
    assert [row["correct"] for row in rows] == [True, False]
    assert rows[1]["second_opinion"] == "unavailable"
    assert any("1 answers could be compared only by math-verify" in f for f in task.summarise(rows)["flags"])


def test_votes_of_a_majority():
    task = AimeTask()
    votes = [task.vote(Answer(t)) for t in ("\\boxed{047}", "\\boxed{47.0}", "\\boxed{\\dfrac12}", "none")]
    assert votes == ["47", "47", "\\frac{1}{2}", None]
    assert task.vote(Answer("\\boxed{47}", finished=False)) is None


def test_a_score_is_what_the_loop_expects():
    found = score(RIGHT)
    assert isinstance(found, Score)
    assert all(isinstance(v, float) for v in found.metrics.values())
