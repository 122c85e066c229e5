"""What is changed in a body before its engine sees it: the shapes real clients send."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from garra import config
from garra.apis.edits import edited, merged
from garra.apis.mend import ToolsRefused
from garra.apis.prepare import is_plain, prepare
from garra.apis.routes import BY_PATH, ROUTES, Api, Work
from garra.dialogue import Edits, Mends, Traits
from garra.errors import BadRequest, ConfigError
from garra.spec import Profile

PROFILE = config.load().profiles["turbo_4b"]
PICKY = Traits(tools=True, picky=True)
NO_TOOLS = Traits(tools=False, picky=False)
CHAT = BY_PATH["POST", "/v1/chat/completions"]
MESSAGES = BY_PATH["POST", "/v1/messages"]
RESPONSES = BY_PATH["POST", "/v1/responses"]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def sent(route: Any, asked: dict[str, Any], traits: Traits = PICKY, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    """What the engine gets, and what was mended."""
    body = json.dumps(asked).encode()
    profile = replace(PROFILE, **changes)
    prepared = prepare(body, route, profile, traits)
    if is_plain(body, route, profile, traits):
        assert prepared.body is body
    if not prepared.mended and "edits" not in changes:
        assert prepared.body is body, "what needs no mending is not touched"
    return json.loads(prepared.body), list(prepared.mended)


def user(text: str = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: Any = "be brief", role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": text}


# -- one leading system message


@pytest.mark.parametrize(
    ("messages", "lead"),
    [
        ([system("a"), system("b"), user()], "a\n\nb"),
        ([system("a"), user(), system("late")], "a\n\nlate"),
        ([user(), system("late")], "late"),
        ([system("a", "developer"), user()], "a"),
        ([system([{"type": "text", "text": "a"}]), system("b", "developer"), user()], "a\n\nb"),
    ],
)
def test_system_messages_become_one_leading_one(messages: list[dict[str, Any]], lead: str) -> None:
    asked, mended = sent(CHAT, {"model": "m", "messages": messages})
    assert asked["messages"] == [system(lead), user()]
    assert mended == ["system"]


def test_an_ordinary_conversation_is_not_touched() -> None:
    ordinary = {"model": "m", "messages": [system(), user(), {"role": "assistant", "content": 'the "system" word'}]}
    assert sent(CHAT, ordinary) == (ordinary, [])
    late = {"model": "m", "messages": [user(), system("late")]}
    assert sent(CHAT, late, replace(PICKY, picky=False))[1] == [], "a template that takes it gets it"
    assert sent(CHAT, late, mends=Mends(system="off"))[1] == []
    assert sent(CHAT, late, replace(PICKY, picky=False), mends=Mends(system="on"))[1] == ["system"]


def test_claude_codes_late_system_message_and_billing_block() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.197.a3f; cc_entrypoint=cli; cch=00000;"
    asked = {
        "model": "m",
        "system": [{"type": "text", "text": billing}, {"type": "text", "text": "You are", "cache_control": {}}],
        "messages": [user(), system("a reminder"), system([{"type": "text", "text": "a list"}])],
    }
    told, mended = sent(MESSAGES, asked)
    assert mended == ["billing_block", "system"]
    assert [block["text"] for block in told["system"]] == ["You are", "a reminder", "a list"]
    assert told["messages"] == [user()]
    other = json.loads(json.dumps(asked).replace("a3f", "b7c").replace("00000", "12345"))
    assert sent(MESSAGES, other)[0] == told, "two sessions share their prefix"
    assert sent(MESSAGES, {**asked, "system": billing + "You are"})[0]["system"][0]["text"] == "You are"
    kept, mended = sent(MESSAGES, asked, mends=Mends(billing_block=False, system="off"))
    assert (kept, mended) == (asked, [])


def test_codex_developer_messages_and_odd_tools() -> None:
    asked = {
        "model": "m",
        "instructions": "base",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "one"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "two"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
        "tools": [{"type": "function", "name": "shell"}, {"type": "namespace"}, {"type": "web_search"}],
    }
    told, mended = sent(RESPONSES, asked)
    assert told["instructions"] == "base\n\none\n\ntwo"
    assert [item["role"] for item in told["input"]] == ["user"]
    assert [tool["type"] for tool in told["tools"]] == ["function"]
    assert mended == ["system", "tools (namespace web_search)"]


def test_instructions_and_a_leading_system_item_are_two_system_messages() -> None:
    asked = {"model": "m", "instructions": "base", "input": [system("more"), user()]}
    told, mended = sent(RESPONSES, asked)
    assert (told["instructions"], told["input"], mended) == ("base\n\nmore", [user()], ["system"])


# -- formats and tools


def test_a_responses_schema_is_put_where_the_engine_looks() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    told, mended = sent(RESPONSES, {"model": "m", "input": "hi", "text": {"format": form}})
    wanted = {"name": "answer", "schema": schema, "strict": True}
    assert told["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert mended == ["text_format"]
    assert sent(RESPONSES, {"model": "m", "input": "hi", "text": {"format": {"type": "text"}}})[1] == []


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        (CHAT, {"model": "m", "messages": [user()], "tools": [TOOL]}),
        (CHAT, {"model": "m", "messages": [user()], "tool_choice": "required"}),
        (MESSAGES, {"model": "m", "messages": [user()], "tools": [{"name": "look"}], "tool_choice": {"type": "any"}}),
        (RESPONSES, {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "look"}]}),
    ],
)
def test_tools_without_a_place_in_the_template_are_refused(route: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(ToolsRefused) as refusal:
        sent(route, asked, NO_TOOLS)
    assert refusal.value.http_status == 400
    assert 'tools = "drop"' in str(refusal.value.fix)


def test_tools_can_be_dropped_but_never_a_forced_one() -> None:
    asked = {"model": "m", "messages": [user()], "tools": [TOOL], "tool_choice": "auto"}
    told, mended = sent(CHAT, asked, NO_TOOLS, mends=Mends(tools="drop"))
    assert told == {"model": "m", "messages": [user()]}
    assert mended == ["tools"]
    with pytest.raises(ToolsRefused):
        sent(CHAT, {**asked, "tool_choice": "required"}, NO_TOOLS, mends=Mends(tools="drop"))
    assert sent(CHAT, asked, PICKY)[1] == []


# -- defaults, force, strip


def test_a_profile_edits_bodies() -> None:
    edits = Edits({"temperature": 0.1, "chat_template_kwargs": {"a": 1, "b": 2}}, {"seed": 7}, ("user",))
    asked = {"model": "m", "messages": [user()], "user": "x", "seed": 1, "chat_template_kwargs": {"b": 3}}
    told, mended = sent(CHAT, asked, edits=edits)
    assert told == {
        "model": "m", "messages": [user()], "temperature": 0.1, "seed": 7, "chat_template_kwargs": {"a": 1, "b": 3},
    }  # fmt: skip
    assert mended == []
    assert edited({"temperature": 0.9}, edits)["temperature"] == 0.9


def test_a_variant_adds_to_its_profile() -> None:
    base = Edits({"temperature": 0.1, "k": {"a": 1}}, {"seed": 7}, ("user",))
    more = Edits({"temperature": 0.2, "k": {"b": 2}}, {"seed": 8}, ("n",))
    assert merged(base, more) == Edits({"temperature": 0.2, "k": {"a": 1, "b": 2}}, {"seed": 8}, ("user", "n"))


def test_counting_sees_the_body_that_would_be_answered() -> None:
    count = BY_PATH["POST", "/v1/messages/count_tokens"]
    assert sent(count, {"model": "m", "messages": [user(), system("late")]})[1] == ["system"]
    assert BY_PATH["POST", "/tokenize"].form is None
    forms = {route.path: route.form for route in ROUTES if route.work is Work.COUNT}
    assert forms["/v1/responses/input_tokens"] is Api.RESPONSES
    assert forms["/chat/completions/input_tokens"] is Api.CHAT
    assert forms["/apply-template"] is Api.CHAT


def test_a_body_that_has_to_be_edited_must_be_an_object() -> None:
    with pytest.raises(BadRequest):
        prepare(b"[1]", CHAT, replace(PROFILE, edits=Edits({"seed": 1})), PICKY)


# -- in profiles.toml


def loaded(text: str, tmp_path: Any) -> config.Config:
    file = tmp_path / "profiles.toml"
    file.write_text(text)
    return config.load(user_file=file)


def test_variants_are_names_of_the_same_engine(tmp_path: Any) -> None:
    made = loaded(
        """
        [profiles.demo]
        aliases = ["small"]
        body.defaults = { temperature = 0.5 }
        mend = { tools = "drop" }
        [profiles.demo.variants.nothink]
        force.chat_template_kwargs = { enable_thinking = false }
        """,
        tmp_path,
    )
    variant: Profile = made.profile("small:nothink")
    assert (variant.name, variant.variant) == ("demo", "nothink")
    assert variant.edits.force == {"chat_template_kwargs": {"enable_thinking": False}}
    assert variant.edits.defaults == {"temperature": 0.5}
    assert variant.launches_like(made.profile("demo"))
    assert made.profile("demo:latest") is made.profile("demo")
    assert variant.mends.tools == "drop"


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("body.defaults = { model = 'x' }", "model belong to the client"),
        ("body.force = 3", "valid dictionary"),
        ("body.forced = {}", 'did you mean "force"?'),
        ("mend = { sistem = 'on' }", 'did you mean "system"?'),
        ("mend = { tools = 'maybe' }", "refuse"),
        ("variants.Loud = {}", "variant name"),
        ("variants.loud = { stripp = [] }", 'did you mean "strip"?'),
        ("pooling = 'mean'", "needs kind"),
        ("kind = 'embedding'\nspeculation = 'ngram'", "decodes nothing"),
    ],
)
def test_wrong_tables_are_told(table: str, complaint: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(f"[profiles.demo]\n{table}\n", tmp_path)
    assert complaint in error.value.what
