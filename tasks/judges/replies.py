"""The structured replies that a model judge must give, checked by pydantic before anything is believed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Signed = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


class Reply(BaseModel):
    """Base of all replies: nothing missing, nothing more."""

    model_config = ConfigDict(extra="forbid", strict=False)


class ItemReply(Reply):
    """One rubric item: how far it is met, from 0 to 1."""

    name: str
    score: Share


class CommentReply(Reply):
    """A remark on a passage quoted from the answer."""

    quote: Annotated[str, Field(max_length=400)]
    value: Signed
    text: Annotated[str, Field(max_length=400)]


class RubricReply(Reply):
    """Scores of all rubric items, and remarks."""

    items: list[ItemReply]
    comments: Annotated[list[CommentReply], Field(max_length=20)]


class StepsReply(Reply):
    """One score for each step, in order."""

    scores: list[Signed]


class PairReply(Reply):
    """The better of two."""

    winner: Literal["first", "second", "tie"]


def json_schema(model: type[Reply]) -> dict[str, Any]:
    """The JSON Schema of a reply, without what strict structured output does not take."""
    return _plain(model.model_json_schema())


def _plain(node: Any) -> Any:
    """Drops titles, bounds and defaults, which several servers refuse; pydantic checks them afterwards."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    dropped = {"title", "default", "minimum", "maximum", "maxLength", "maxItems", "description"}
    return {
        key: {name: _plain(value) for name, value in item.items()}
        if key in {"properties", "$defs"}
        else _plain(item)
        for key, item in node.items()
        if key not in dropped
    }


def parse(model: type[Reply], text: str) -> Reply | str:
    """The reply, or in one line why it is none."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "reply"
        return f"the judge's reply is malformed: {place}: {first['msg']}"
