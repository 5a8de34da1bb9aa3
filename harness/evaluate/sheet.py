"""A sheet of screenshots: prompts down, arms across, to be looked at by eye."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.store.writer import write_atomic

THUMBNAIL = (200, 150)
GAP = 6
HEAD = 24
LABEL_CHARS = 30
WORDS = {
    "not_compiled": "does not compile",
    "unfinished": "cut off",
    "threw": "throws",
    "timeout": "hangs",
}


@dataclass(frozen=True)
class Shot:
    """What one arm's answer to one prompt shows: PNG bytes, or empty ones with the reason."""

    png: bytes
    status: str


def fullest_rows(shots: Mapping[str, Sequence[Shot]], rows: int) -> list[int]:
    """The prompts with the most pictures, in their own order."""
    count = len(next(iter(shots.values())))
    ranked = sorted(range(count), key=lambda i: -sum(bool(column[i].png) for column in shots.values()))
    return sorted(ranked[:rows])


def write_sheet(
    path: Path, prompts: Sequence[str], shots: Mapping[str, Sequence[Shot]], *, rows: int = 8
) -> None:
    """Writes a PNG with the prompts that most arms answered; `shots` holds one for each prompt, by arm."""
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(size=12)
    chosen = fullest_rows(shots, rows)
    width, height = THUMBNAIL
    size = (GAP + (len(shots) + 1) * (width + GAP), HEAD + GAP + len(chosen) * (height + GAP))
    sheet = Image.new("RGB", size, "#e8e8e8")
    draw = ImageDraw.Draw(sheet)
    for column, (arm, own) in enumerate(shots.items(), start=1):
        left = GAP + column * (width + GAP)
        draw.text((left, GAP), arm, fill="black", font=font)
        for row, prompt in enumerate(chosen):
            top = HEAD + GAP + row * (height + GAP)
            shot = own[prompt]
            if shot.png:
                with Image.open(io.BytesIO(shot.png)) as image:
                    sheet.paste(image.convert("RGB").resize(THUMBNAIL), (left, top))
            else:
                words = WORDS.get(shot.status, shot.status)
                draw.rectangle((left, top, left + width - 1, top + height - 1), fill="#cccccc")
                draw.text((left + GAP, top + GAP), words, fill="#555555", font=font)
    for row, prompt in enumerate(chosen):
        lines = textwrap.wrap(prompts[prompt], LABEL_CHARS)[: height // 15]
        top = HEAD + GAP + row * (height + GAP)
        draw.multiline_text((GAP, top), "\n".join(lines), fill="black", font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    write_atomic(path, buffer.getvalue())
