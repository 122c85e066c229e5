"""Chat templates: ordinary ones pass, tricks are named with their place."""

from __future__ import annotations

import pytest

from garra.registry.template import findings
from tests.tiny_gguf import CHATML

QWEN = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- "# Tools\\n\\nYou may call one or more functions" }}
{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- macro render(content) %}{{- content.split('</think>')[-1].lstrip('\\n') }}{%- endmacro %}
{{- raise_exception('no user message') }}{{- strftime_now("%d %b %Y") }}"""


@pytest.mark.parametrize("template", ["", CHATML, QWEN])
def test_ordinary_templates_pass(template: str) -> None:
    assert findings(template) == []


@pytest.mark.parametrize(
    ("trick", "what"),
    [
        ("{{ ''.__class__ }}", "reaches for Python's internals: __class__"),
        ("{{ x|attr('_' ~ '_class') }}", "reads attributes by computed names"),
        ("{{ lipsum.globals }}", "escape their sandbox"),
        ("{{ popen('id').read() }}", "runs code or opens files"),
        ("{% include '/etc/passwd' %}", "loads other templates"),
        ("{% for i in range(999999999) %}{% endfor %}", "millions of times"),
        ("{{ 'visit https://evil.example/x now' }}", "web address"),
        ("{{ 'a\u200bb' }}", "invisible characters"),
    ],
)
def test_tricks_are_named_with_their_line(trick: str, what: str) -> None:
    (told,) = findings(CHATML + "\n\n" + trick)
    assert what in told
    assert f"(line {CHATML.count(chr(10)) + 3})" in told
    assert told.isprintable()
