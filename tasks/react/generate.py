"""Generated React problems: prompts, one right component each, and random edits that break components.

Everything is a pure function of its arguments. Train and test share neither a component name nor a
feature combination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

import numpy as np

from tasks.base import Example

SPLITS = ("train", "test")
MAX_FEATURES = 3
CORPUS_EDIT_RATES = (0.02, 0.1)
FIRST_WORDS = re.findall(
    r"\w+",
    "Blog User Shop News Team Menu Photo Order Task Event Game Book City Chat Mail Plan",
)
SECOND_WORDS = re.findall(r"\w+", "Card Page Panel Box View Form Tile Item Bar Row Feed Tab")
TEXTS = ("Hello", "Home", "More", "Save", "Open", "Send", "Title", "Name")
FEATURES: Mapping[str, re.Pattern[str]] = {
    "heading": re.compile(r"<h[1-6]\b"),
    "text": re.compile(r"<p\b"),
    "list": re.compile(r"<ul\b"),
    "button": re.compile(r"<button\b"),
    "input": re.compile(r"<input\b"),
    "image": re.compile(r"<img\b"),
    "link": re.compile(r"<a\b"),
    "counter": re.compile(r"\buseState\("),
}
"""The features a prompt can ask for, and what shows that a component has one."""

_SKETCHES: Mapping[str, str] = {
    "heading": "<h1>",
    "text": "<p>",
    "list": "<ul> with <li>",
    "button": "<button>",
    "input": "<input />",
    "image": "<img />",
    "link": "<a>",
    "counter": "useState",
}
_LEXEME = re.compile(r"\w+|\s+|[^\w\s]")


def rng_for(*key: int) -> np.random.Generator:
    """A counter-based generator (Philox) that depends on `key` alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def _names(split: str) -> list[str]:
    """One name in five is held out; every word occurs in both splits."""
    pairs = ((i, j) for i in range(len(FIRST_WORDS)) for j in range(len(SECOND_WORDS)))
    return [FIRST_WORDS[i] + SECOND_WORDS[j] for i, j in pairs if ((i + 2 * j) % 5 == 0) == (split == "test")]


def _combinations(split: str) -> list[tuple[str, ...]]:
    """One combination of two or three features in four is held out; single features are for training."""
    order = {feature: i for i, feature in enumerate(FEATURES)}
    found = [c for size in range(1, MAX_FEATURES + 1) for c in combinations(FEATURES, size)]

    def held_out(c: Sequence[str]) -> bool:
        return len(c) > 1 and sum(order[f] for f in c) % 4 == 0

    return [c for c in found if held_out(c) == (split == "test")]


@cache
def _problems(split: str) -> list[tuple[str, tuple[str, ...]]]:
    """All problems of a split in a fixed shuffled order, features in a shuffled order too."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown: use one of {', '.join(SPLITS)}")
    rng = rng_for(SPLITS.index(split), 20)
    problems = [(name, combination) for name in _names(split) for combination in _combinations(split)]
    shuffled = [problems[i] for i in rng.permutation(len(problems))]
    return [(name, tuple(str(f) for f in rng.permutation(features))) for name, features in shuffled]


def size(split: str) -> int:
    """Number of different problems of a split."""
    return len(_problems(split))


def example(split: str, index: int) -> Example:
    """Problem number `index` of `train` or `test`; beyond `size(split)` they begin anew."""
    if index < 0:
        raise ValueError(f"index {index} is negative: use 0 or more")
    problems = _problems(split)
    name, features = problems[index % len(problems)]
    listed = ", ".join(features)
    sketch = ", ".join(_SKETCHES[f] for f in features)
    prompt = f"Write a React component named {name} with: {listed}.\n"
    return Example(
        id=f"react-{split}-{index}",
        prompt=prompt,
        reference={"name": name, "features": features},
        variants={
            "without_rubric": f"Write a React component named {name}.\n",
            "privileged": f"{prompt}Solution: export default {name}; return {sketch}.\n",
            "hint_1": f"{prompt}Hint: export default {name}.\n",
            "hint_2": f"{prompt}Hint: export default {name}; return {sketch}.\n",
        },
    )


def with_shots(problem: Example, count: int) -> Example:
    """The problem with `count` solved training problems to show before it, spread over the split, never itself."""
    stride = size("train") // (2 * count + 1) if count else 1
    near = (example("train", stride * (k + 1)) for k in range(2 * count))
    shown = [e for e in near if e.reference != problem.reference][:count]
    solved = tuple((e.prompt, right_answer(e, rng_for(k))) for k, e in enumerate(shown))
    return replace(problem, shots=solved)


@dataclass
class _Parts:
    """What a component is put together from; elements add the props and lines they need."""

    features: Sequence[str]
    elements: list[str] = field(default_factory=list)
    props: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def _pick(rng: np.random.Generator, *choices: str) -> str:
    return choices[int(rng.integers(len(choices)))]


def _heading(parts: _Parts, rng: np.random.Generator) -> str:
    tag = _pick(rng, "h1", "h2")
    if rng.random() < 0.3:
        parts.props["title"] = "string"
        return f"<{tag}>{{title}}</{tag}>"
    return f"<{tag}>{_pick(rng, *TEXTS)}</{tag}>"


def _text(parts: _Parts, rng: np.random.Generator) -> str:
    shape = rng.random()
    word = _pick(rng, *TEXTS)
    if shape < 0.2:
        parts.props["open"] = "boolean"
        return f"{{open && <p>{word}</p>}}"
    if shape < 0.3:
        parts.props["open"] = "boolean"
        return f'<p>{{open ? "{word}" : "{_pick(rng, *TEXTS)}"}}</p>'
    return f"<p>{word}</p>"


def _list(parts: _Parts, rng: np.random.Generator) -> str:
    shape = rng.random()
    if shape < 0.4:
        return f"<ul><li>{_pick(rng, *TEXTS)}</li><li>{_pick(rng, *TEXTS)}</li></ul>"
    if shape < 0.7:
        parts.props["items"] = "string[]"
    else:
        parts.lines.append(f'const items = ["{_pick(rng, *TEXTS)}", "{_pick(rng, *TEXTS)}"];')
    return "<ul>{items.map((x) => <li key={x}>{x}</li>)}</ul>"


def _button(parts: _Parts, rng: np.random.Generator) -> str:
    click = " onClick={() => setN(n + 1)}" if "counter" in parts.features else ""
    return f"<button{click}>{_pick(rng, *TEXTS)}</button>"


def _input(parts: _Parts, rng: np.random.Generator) -> str:
    return _pick(rng, '<input type="text" />', f'<input name="{_pick(rng, "a", "b")}" />')


def _image(parts: _Parts, rng: np.random.Generator) -> str:
    return f'<img src="/{_pick(rng, "a", "b")}.png" alt="{_pick(rng, *TEXTS)}" />'


def _link(parts: _Parts, rng: np.random.Generator) -> str:
    return f'<a href="/{_pick(rng, "a", "b")}">{_pick(rng, *TEXTS)}</a>'


def _counter(parts: _Parts, rng: np.random.Generator) -> str:
    parts.lines.append("const [n, setN] = useState(0);")
    click = "" if "button" in parts.features else " onClick={() => setN(n + 1)}"
    return f"<span{click}>{{n}}</span>"


_ELEMENTS = {
    "heading": _heading,
    "text": _text,
    "list": _list,
    "button": _button,
    "input": _input,
    "image": _image,
    "link": _link,
    "counter": _counter,
}


def _arguments(parts: _Parts) -> str:
    if not parts.props:
        return "()"
    names = ", ".join(parts.props)
    types = "; ".join(f"{name}: {kind}" for name, kind in parts.props.items())
    return f"({{ {names} }}: {{ {types} }})"


def _tree(parts: _Parts, rng: np.random.Generator, indent: str) -> str:
    """The returned JSX, on one line or one element a line."""
    tag = _pick(rng, "div", "div", "main", "")
    if len(parts.elements) == 1 or rng.random() < 0.3:
        return f"<{tag}>{''.join(parts.elements)}</{tag}>"
    inner = "".join(f"{indent}  {element}\n" for element in parts.elements)
    return f"(\n{indent}<{tag}>\n{inner}{indent}</{tag}>\n{indent[2:]})"


def _declaration(name: str, parts: _Parts, rng: np.random.Generator) -> str:
    arguments = _arguments(parts)
    shape = _pick(rng, "default", "default", "function", "arrow")
    if shape == "arrow" and not parts.lines:
        return f"const {name} = {arguments} => {_tree(parts, rng, '  ')};\nexport default {name};"
    lines = "".join(f"  {line}\n" for line in parts.lines)
    body = f"{{\n{lines}  return {_tree(parts, rng, '    ')};\n}}"
    if shape == "arrow":
        return f"const {name} = {arguments} => {body};\nexport default {name};"
    if shape == "function":
        return f"function {name}{arguments} {body}\nexport default {name};"
    return f"export default function {name}{arguments} {body}"


def reference_component(problem: Example, rng: np.random.Generator) -> str:
    """A right TSX component for a problem, in one of many shapes, with the features in the prompt's order."""
    parts = _Parts(features=problem.reference["features"])
    for feature in parts.features:
        parts.elements.append(_ELEMENTS[feature](parts, rng))
    head = 'import { useState } from "react";\n' if "counter" in parts.features else ""
    return head + _declaration(problem.reference["name"], parts, rng)


def corrupt(code: str, rng: np.random.Generator, rate: float = 0.1) -> str:
    """The code with each word and sign edited with probability `rate`: lost, doubled, replaced or swapped."""
    lexemes = _LEXEME.findall(code)
    marks = [i for i, lexeme in enumerate(lexemes) if not lexeme.isspace()]
    words = [lexemes[i] for i in marks]
    edited = list(lexemes)
    for place, i in enumerate(marks):
        if rng.random() >= rate:
            continue
        kind = _pick(rng, "lose", "double", "replace", "replace", "swap")
        if kind == "lose":
            edited[i] = ""
        elif kind == "double":
            edited[i] += edited[i]
        elif kind == "replace":
            edited[i] = words[int(rng.integers(len(words)))]
        elif place > 0:
            before = marks[place - 1]
            edited[before], edited[i] = edited[i], edited[before]
    return "".join(edited)


def answer_text(code: str) -> str:
    """The code as an answer: one fenced block."""
    return f"```tsx\n{code}\n```"


def right_answer(problem: Example, rng: np.random.Generator) -> str:
    """A right answer: a reference component in its fence."""
    return answer_text(reference_component(problem, rng))


def corpus_answer(problem: Example, rng: np.random.Generator) -> str:
    """An answer of the pretraining corpus: a right component, most often with random edits."""
    low, high = CORPUS_EDIT_RATES
    code = reference_component(problem, rng)
    return answer_text(corrupt(code, rng, float(rng.uniform(low, high))))
