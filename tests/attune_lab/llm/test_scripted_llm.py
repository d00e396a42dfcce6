"""Scripts answer by role, from facts alone, and their tokens are estimates."""

from __future__ import annotations

import math

import pytest

from attune_lab.llm import Request
from attune_lab.llm.scripted import ScriptedLLM, estimated_tokens

SCHEMA = {"type": "object", "properties": {"twice": {"type": "integer"}}, "required": ["twice"]}


def request(role="doubler", **facts):
    return Request(role, "You double.", "Double it.", facts, SCHEMA)


LLM = ScriptedLLM({"doubler": lambda facts: {"twice": 2 * facts["n"]}, "liar": lambda facts: {"thrice": 3}})


def test_a_reply_depends_on_the_facts_alone():
    assert LLM.complete(request(n=4)).body == {"twice": 8}
    assert LLM.complete(request(n=4)) == LLM.complete(request(n=4))


def test_tokens_are_estimates_of_the_texts():
    reply = LLM.complete(request(n=4))
    assert reply.estimated
    assert reply.input_tokens == math.ceil(11 / 3.5) + math.ceil(10 / 3.5)
    assert reply.output_tokens == estimated_tokens('{"twice": 8}')
    assert reply.usd == 0.0


def test_a_missing_or_faulty_script_is_the_callers_fault():
    with pytest.raises(ValueError, match="no script plays critic; there are doubler, liar"):
        LLM.complete(request("critic"))
    with pytest.raises(ValueError, match="the script of liar breaks its schema: the reply lacks twice"):
        LLM.complete(request("liar"))
