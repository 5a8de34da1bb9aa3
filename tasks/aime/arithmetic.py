"""Checks the equalities of a step exactly, over integers and fractions, without evaluating any code.

Answers are hostile text. A token list and a recursive parser with bounds on digits, exponents, depth and
size decide; what is not in the grammar (variables, functions, roots, words with a mathematical meaning)
makes an expression unknown, and an equality with an unknown side is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

__all__ = ["Equality", "TooLarge", "Unknown", "evaluate", "find_equalities", "step_value"]

MAX_DIGITS = 30
MAX_EXPONENT = 64
MAX_BITS = 2048
MAX_DEPTH = 20
MAX_TOKENS = 2000
"""Bounds on what is computed; an expression beyond one of them is unknown."""


class Unknown(Exception):
    """An expression outside the grammar or beyond its bounds."""


class TooLarge(Unknown):
    """An expression whose value would take too much to compute."""


class Token(NamedTuple):
    """A lexical unit: its kind, its text and where it lies."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Equality:
    """One `left = right` of a text: its range in code points, and whether it holds exactly."""

    start: int
    end: int
    holds: bool
    left: Fraction
    right: Fraction


_TOKEN = re.compile(
    r"""
    (?P<bullet>(?:\n|(?<![\s\S]))[ \t]{0,20}[-*+•][ \t]+)
  | (?P<number>\d{1,3}(?:(?:\{,\}|,)\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?)
  | (?P<frac>\\[dtc]?frac(?![A-Za-z]))
  | (?P<times>\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*(?!\*)|[×·⋅∙])
  | (?P<over>\\div(?![A-Za-z])|/|÷)
  | (?P<power>\*\*|\^)
  | (?P<plus>\+)
  | (?P<minus>-|−|–)
  | (?P<equals>=(?!=))
  | (?P<relation>==|<=|>=|!=|[<>≈≠≤≥≡∼~]|\\(?:approx|neq?|leq?|geq?|lt|gt|equiv|sim|cong|to|implies|Rightarrow
        |iff|rightarrow|Longrightarrow|Leftrightarrow)(?![A-Za-z])|[⇒→⟹])
  | (?P<open>\\?\\left\s?\(|\(|\[(?!\w*\]\()|\{)
  | (?P<close>\\?\\right\s?\)|\)|\]|\})
  | (?P<space>[^\S\n]+|\n|\\[,;:!\ ]|\\q?quad(?![A-Za-z])|\\displaystyle(?![A-Za-z])|\\left(?![A-Za-z])|\\right(?![A-Za-z])|&)
  | (?P<fence>\$\$?|\\\(|\\\)|\\\[|\\\]|\\\\|[.,;:?]|\*\*)
  | (?P<text>\\(?:text|textbf|mathrm|mbox|textit)\s?\{[^{}]{0,60}\})
  | (?P<command>\\[A-Za-z]+)
  | (?P<word>[^\W\d_]+(?:'[^\W\d_]+)*)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

# words that take part in the arithmetic: next to one, an equality is not judged
_MATHS_WORDS = re.compile(
    r"(?:mod|modulo|times|plus|minus|over|divided|multiplied|squared|cubed|percent|dozen|hundred|thousand|million"
    r"|billion|choose|factorial|twice|thrice|double|triple|half|third|quarter|remainder|power|root|log|sin|cos"
    r"|tan|gcd|lcm|max|min|base|sum|product)"
)


def _tokens(text: str) -> list[Token]:
    """The tokens of a text, at most MAX_TOKENS of them; words that matter become `unknown`."""
    out: list[Token] = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        if len(out) == MAX_TOKENS:
            break
        lowered = match[0].lower()
        if kind == "word" and (len(lowered) == 1 or _MATHS_WORDS.fullmatch(lowered)):
            kind = "unknown"
        elif kind == "word" and text[match.end() : match.end() + 1] in ("(", "_", "^"):
            kind = "unknown"  # a function or a variable
        elif kind == "bullet":
            kind = "fence"
        elif kind in ("command", "other"):
            kind = "unknown"
        elif kind == "text":
            words = re.findall(r"[a-z]+", lowered.partition("{")[2])
            function = text[match.end() : match.end() + 1] in ("(", "_", "^")
            unknown = function or any(_MATHS_WORDS.fullmatch(word) for word in words)
            kind = "unknown" if unknown else "word"
        out.append(Token(kind, match[0], match.start(), match.end()))
    return out


def _number(text: str) -> Fraction:
    digits = text.replace("{,}", "").replace(",", "")
    if len(digits) > MAX_DIGITS or not digits.isascii():
        raise Unknown("a number with too many digits")
    return Fraction(digits)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooLarge("a value that is too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """base^exponent for small whole exponents; the size is known before it is computed."""
    if exponent.denominator != 1 or (base == 0 and exponent <= 0):
        raise Unknown("a power that is no fraction or not defined")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) > MAX_EXPONENT or size * abs(int(exponent)) > MAX_BITS:
        raise TooLarge("a power that is too large")
    return Fraction(base) ** int(exponent)


class _Parser:
    """Recursive descent over tokens: sums of products of signed powers of numbers and groups."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.place].kind if self.place < len(self.tokens) else ""

    def take(self) -> Token:
        if self.place >= len(self.tokens):
            raise Unknown("an expression that ends early")
        self.place += 1
        return self.tokens[self.place - 1]

    def whole(self) -> Fraction:
        value = self.sum()
        if self.place != len(self.tokens):
            raise Unknown("something after an expression")
        return value

    def sum(self) -> Fraction:
        value = self.product()
        while self.peek() in ("plus", "minus"):
            minus = self.take().kind == "minus"
            term = self.product()
            value = _bounded(value - term if minus else value + term)
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while True:
            kind = self.peek()
            if kind in ("times", "over"):
                self.take()
                factor = self.signed()
            elif kind in ("open", "frac"):
                factor = self.juxtaposed()
            else:
                return value
            if kind == "over" and factor == 0:
                raise Unknown("a division by zero")
            value = _bounded(value / factor if kind == "over" else value * factor)

    def juxtaposed(self) -> Fraction:
        """A factor written without a sign, as in 2(3+4); 2\\frac{1}{2} is a mixed number, so unknown."""
        before = self.tokens[self.place - 1]
        if self.peek() == "frac" and before.kind == "number":
            raise Unknown("a mixed number or a product")
        return self.powered()

    def signed(self) -> Fraction:
        if self.peek() in ("plus", "minus"):
            minus = self.take().kind == "minus"
            self.enter()
            value = self.signed()
            self.depth -= 1
            return -value if minus else value
        return self.powered()

    def powered(self) -> Fraction:
        base = self.atom()
        if self.peek() != "power":
            return base
        self.take()
        self.enter()
        exponent = self.signed()  # right-associative
        self.depth -= 1
        return _power(base, exponent)

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unknown("an expression that is nested too deeply")

    def atom(self) -> Fraction:
        token = self.take()
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "frac":
            top, bottom = self.part(), self.part()
            if bottom == 0:
                raise Unknown("a division by zero")
            return _bounded(top / bottom)
        if token.kind == "open":
            return self.group()
        raise Unknown(f"{token.text!r} where a number should be")

    def group(self) -> Fraction:
        self.enter()
        value = self.sum()
        self.depth -= 1
        if self.take().kind != "close":
            raise Unknown("a group that does not close")
        return value

    def part(self) -> Fraction:
        """A part of a \\frac: a group, or a single digit."""
        token = self.take()
        if token.kind == "open":
            return self.group()
        if token.kind == "number" and len(token.text) == 1:
            return _number(token.text)
        raise Unknown("a fraction without braces")


def _split_digits(tokens: Sequence[Token]) -> list[Token]:
    """`\\frac12` as its two digits, which TeX reads as its two parts."""
    out: list[Token] = []
    for token in tokens:
        if token.kind == "number" and len(token.text) == 2 and out and out[-1].kind == "frac":
            middle = token.start + 1
            out.append(Token("number", token.text[0], token.start, middle))
            out.append(Token("number", token.text[1], middle, token.end))
        else:
            out.append(token)
    return out


def _value(tokens: Sequence[Token]) -> Fraction:
    return _Parser(_split_digits(tokens)).whole()


def evaluate(text: str) -> Fraction:
    """The exact value of an arithmetic expression; Unknown when it is outside the grammar or its bounds."""
    tokens = [t for t in _tokens(text) if t.kind != "fence" or t.text not in ("$", "\\(", "\\)")]
    if not tokens or len(tokens) == MAX_TOKENS:
        raise Unknown("no expression, or one that is too long")
    return _value(tokens)


def _runs(tokens: Sequence[Token]) -> Iterator[tuple[bool, list[Token], bool]]:
    """Stretches without prose, each with whether a word comes right before and right after it."""
    run: list[Token] = []
    word_before = False
    for token in tokens:
        if token.kind in ("word", "fence"):
            if run:
                yield word_before, run, token.kind == "word"
            run, word_before = [], token.kind == "word"
        else:
            run.append(token)
    if run:
        yield word_before, run, False


def _sides(run: Sequence[Token]) -> Iterator[tuple[str, list[Token]]]:
    """The sides of a chain a = b < c = d, each with the relation before it."""
    relation = ""
    side: list[Token] = []
    for token in run:
        if token.kind in ("equals", "relation"):
            yield relation, side
            relation, side = token.kind, []
        else:
            side.append(token)
    yield relation, side


def _known(side: Sequence[Token], *, after_word: bool, before_word: bool) -> Fraction | None:
    """The value of a side; None when it is unknown or may only be the rest of a sentence."""
    if not side:
        return None
    if after_word and (side[0].kind in ("plus", "minus") or len(side) == 1):
        return None  # "the total - 3 = 5", "twice 4 = 8": the words belong to it
    if before_word and len(side) > 1 and side[-1].kind in ("plus", "minus", "times", "over"):
        return None
    try:
        return _value(side)
    except Unknown:
        return None


def _is_rounding(left: Sequence[Token], right: Sequence[Token], difference: Fraction) -> bool:
    """Whether two sides differ by no more than the rounding of a decimal in one of them."""
    places = [len(t.text.partition(".")[2]) for t in (*left, *right) if t.kind == "number" and "." in t.text]
    return bool(places) and abs(difference) <= Fraction(1, 2 * 10 ** min(max(places), 20))


def find_equalities(text: str) -> list[Equality]:
    """Every equality of a text that can be judged, with its exact verdict.

    Not judged: a side with a variable, a function or an unknown sign; two lone numbers; a decimal that
    differs only by its rounding.
    """
    found: list[Equality] = []
    for word_before, run, word_after in _runs(_tokens(text)):
        sides = list(_sides(run))
        for i in range(1, len(sides)):
            (_, left), (relation, right) = sides[i - 1], sides[i]
            if relation != "equals" or not left or not right or len(left) == len(right) == 1:
                continue
            a = _known(left, after_word=word_before and i == 1, before_word=False)
            b = _known(right, after_word=False, before_word=word_after and i == len(sides) - 1)
            if a is None or b is None or (a != b and _is_rounding(left, right, a - b)):
                continue
            found.append(Equality(left[0].start, right[-1].end, a == b, a, b))
    return found


def step_value(equalities: Sequence[Equality]) -> float | None:
    """1 when every judged equality of a step holds, -1 when one does not, None when there is none."""
    if not equalities:
        return None
    return 1.0 if all(e.holds for e in equalities) else -1.0
