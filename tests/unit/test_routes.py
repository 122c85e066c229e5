"""One table of routes in code, one in docs."""

from __future__ import annotations

import re
from pathlib import Path

from garra.apis.routes import BY_PATH, ROUTES, Api, api_of
from garra.dialogue import Mends

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| (GET|POST) `([^`]+)` \| ([^|]+?) \| ([^|]+?) \| ?([^|]*?) ?\|$", DOCS, re.MULTILINE)
    assert rows == [(one.method, one.path, one.api.value, one.work.value, one.note) for one in ROUTES]
    assert len(BY_PATH) == len(ROUTES)


def test_every_mending_is_in_the_docs() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| (?:`|true)", DOCS, re.MULTILINE)) == set(Mends.__dataclass_fields__)


def test_paths_that_do_not_exist_have_an_api_too() -> None:
    assert api_of("POST", "/api/none") is Api.OLLAMA
    assert api_of("GET", "/v1/messages/x") is Api.MESSAGES
    assert api_of("GET", "/v1/responses/resp_1") is Api.RESPONSES
    assert api_of("PUT", "/elsewhere") is Api.OPENAI
