"""Solved problems before a prompt: turns of a chat, or plain text."""

from __future__ import annotations

from tiny_models import build_tokenizer

from harness.train.prompts import PromptCodec

TURNS = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
SHOTS = (("the cat", "sat"), ("the dog", "ran"))


def test_shots_are_earlier_turns_of_a_chat():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TURNS
    text = "[user] the cat [assistant] sat [user] the dog [assistant] ran [user] the hen "
    codec = PromptCodec(tokenizer)
    assert codec.encode("the hen", shots=SHOTS) == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert codec.encode("the hen", shots=SHOTS) != codec.encode("the hen")


def test_shots_are_plain_text_without_a_template():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    codec = PromptCodec(tokenizer)
    assert codec.encode("the hen", shots=SHOTS[:1]) == tokenizer("the catsat\n\nthe hen")["input_ids"]
