"""What clients send and engines refuse, mended before it is sent on. Pure; docs/api.md names every mending.

Each one works on the body of one API and tells its name when it changed something: nothing is mended in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeGuard

from garra.apis.routes import Api
from garra.dialogue import Mends, Traits
from garra.errors import BadRequest

SYSTEM, TOOLS, TEXT_FORMAT, BILLING = "system", "tools", "text_format", "billing_block"
_SPEAKS_FIRST = ("system", "developer")
_BILLING_BLOCK = re.compile(r"x-anthropic-billing-header:(?: *[\w-]+=[^;\n]*;?)*\n?")
_BETWEEN = "\n\n"


class ToolsRefused(BadRequest):
    """The model's template has no place for tools."""

    code = "tools_not_supported"


def mended(asked: dict[str, Any], form: Api, mends: Mends, traits: Traits) -> list[str]:
    """Change `asked` in place; the names of what was mended. Raises ToolsRefused."""
    done: list[str] = []
    if form is Api.MESSAGES and mends.billing_block and _drop_billing_block(asked):
        done.append(BILLING)
    if mends.merges_system(traits) and _MERGERS[form](asked):
        done.append(SYSTEM)
    if form is Api.RESPONSES and mends.text_format and _map_text_format(asked):
        done.append(TEXT_FORMAT)
    if not traits.tools and asked.get("tools"):
        _do_without_tools(asked, mends)
        done.append(TOOLS)
    elif form is Api.RESPONSES and (dropped := _drop_odd_tools(asked)):
        done.append(f"{TOOLS} ({' '.join(dropped)})")
    elif not traits.tools and _is_forced(asked.get("tool_choice")):
        raise _no_tools()
    return done


# -- one system message, and that first


def _merge_chat(asked: dict[str, Any]) -> bool:
    messages = asked.get("messages")
    if not _is_dialogue(messages):
        return False
    spoken = [n for n, one in enumerate(messages) if one.get("role") in _SPEAKS_FIRST]
    if not spoken or (spoken == [0] and messages[0]["role"] == "system"):
        return False
    lead = {"role": "system", "content": _joined(messages[n].get("content") for n in spoken)}
    asked["messages"] = [lead, *(one for n, one in enumerate(messages) if n not in spoken)]
    return True


def _merge_messages(asked: dict[str, Any]) -> bool:
    messages = asked.get("messages")
    if not _is_dialogue(messages):
        return False
    late = [one for one in messages if one.get("role") in _SPEAKS_FIRST]
    if not late:
        return False
    blocks = _blocks(asked.get("system"))
    asked["system"] = [*blocks, *(block for one in late for block in _blocks(one.get("content")))]
    asked["messages"] = [one for one in messages if one not in late]
    return True


def _merge_responses(asked: dict[str, Any]) -> bool:
    items = asked.get("input")
    if not _is_dialogue(items):
        return False
    spoken = [one for one in items if one.get("role") in _SPEAKS_FIRST]
    instructions = asked.get("instructions")
    if not spoken or (not instructions and spoken == items[:1] and spoken[0]["role"] == "system"):
        return False
    asked["instructions"] = _joined([instructions, *(one.get("content") for one in spoken)])
    asked["input"] = [one for one in items if one not in spoken]
    return True


_MERGERS = {Api.CHAT: _merge_chat, Api.MESSAGES: _merge_messages, Api.RESPONSES: _merge_responses}


def _is_dialogue(messages: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(messages, list) and all(isinstance(one, dict) for one in messages)


def _joined(contents: Iterable[Any]) -> str:
    return _BETWEEN.join(text for content in contents if (text := _text(content)))


def _text(content: Any) -> str:
    """The text of a message's content, whichever way it is written."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _BETWEEN.join(part["text"] for part in content if isinstance(part, dict) and _has_text(part))
    return ""


def _has_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _blocks(content: Any) -> list[Any]:
    """Content as Anthropic's list of blocks."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


# -- what changes from session to session


def _drop_billing_block(asked: dict[str, Any]) -> bool:
    system = asked.get("system")
    if isinstance(system, str):
        asked["system"] = _BILLING_BLOCK.sub("", system, count=1) if system.startswith("x-anthropic-") else system
        return bool(asked["system"] != system)
    if not isinstance(system, list):
        return False
    kept: list[Any] = []
    for block in system:
        if isinstance(block, dict) and _has_text(block) and block["text"].startswith("x-anthropic-billing-header:"):
            rest = _BILLING_BLOCK.sub("", block["text"], count=1)
            kept += [{**block, "text": rest}] if rest else []
        else:
            kept.append(block)
    asked["system"] = kept
    return kept != system


# -- formats and tools


def _map_text_format(asked: dict[str, Any]) -> bool:
    """The schema a response must follow, where the engine looks for it."""
    text = asked.get("text")
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or "response_format" in asked:
        return False
    match wanted.get("type"):
        case "json_schema":
            schema = {key: wanted[key] for key in ("name", "schema", "strict") if key in wanted}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        case "json_object":
            asked["response_format"] = {"type": "json_object"}
        case _:
            return False
    return True


def _drop_odd_tools(asked: dict[str, Any]) -> list[str]:
    """Tools no engine knows, which it would drop without a word; their types."""
    tools = asked.get("tools")
    if not isinstance(tools, list):
        return []
    odd = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") not in ("function", None)]
    if not odd:
        return []
    asked["tools"] = [tool for tool in tools if tool not in odd]
    return list(dict.fromkeys(str(tool["type"])[:40] for tool in odd))


def _do_without_tools(asked: dict[str, Any], mends: Mends) -> None:
    choice = asked.get("tool_choice")
    if mends.tools == "refuse" or _is_forced(choice):
        raise _no_tools()
    for key in ("tools", "tool_choice", "parallel_tool_calls"):
        asked.pop(key, None)


def _is_forced(choice: Any) -> bool:
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice in ("required", "any")


def _no_tools() -> ToolsRefused:
    return ToolsRefused(
        "this model's chat template has no place for tools: it would answer as if there were none",
        fix='use a model with tool support, or set mend = { tools = "drop" } in its profile',
    )
