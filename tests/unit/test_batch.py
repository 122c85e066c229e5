"""Batch files: bad lines told before anything is asked, whole answers only, never one twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import test_utils, web

from garra.batch import files, lines
from garra.batch.run import Batch, Progress
from garra.batch.window import MOST, Window
from garra.errors import BadRequest, DownloadFailed, Taken


def line(custom_id: str, **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
                       "body": {"model": "m", "messages": []}, **more})  # fmt: skip


def written(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows))
    return path


def test_openais_lines_are_read_and_answered_in_kind(tmp_path: Path) -> None:
    wanted = files.look_through(written(tmp_path / "in.jsonl", line("a"), "", line("b", url="/v1/embeddings")))
    assert wanted.n == 2
    first, second = wanted.requests(set())
    assert (first.custom_id, second.url) == ("a", "/v1/embeddings")
    assert [asked.custom_id for asked in wanted.requests({"a"})] == ["b"]
    told = json.loads(lines.answered(first, 200, "r-1", b'{"choices": []}'))
    assert told["custom_id"] == "a"
    assert told["response"] == {"status_code": 200, "request_id": "r-1", "body": {"choices": []}}
    assert told["error"] is None
    assert json.loads(lines.answered(first, 200, "", b"no json"))["response"]["body"] == "no json"
    assert json.loads(lines.failed(first, "broken", "x"))["error"] == {"code": "broken", "message": "x"}
    assert lines.answered(first, 200, "", b'{\n"a":\n1}').count(b"\n") == 1


def test_the_body_may_ask_another_model_and_never_streams() -> None:
    asked = lines.read(line("a", body={"model": "gpt-4", "stream": True, "temperature": 0.5}).encode(), 1)
    assert json.loads(lines.body_for(asked, "demo")) == {"model": "demo", "temperature": 0.5}
    assert json.loads(lines.body_for(asked, None))["model"] == "gpt-4"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((line("a"), "not json"), "line 2 is not a batch request"),
        (('{"body": {}}',), "line 1"),
        ((line("a", body="text"),), "line 1"),
        ((line("a", url="/v1/files"),), "asks POST /v1/files"),
        ((line("a", method="GET"),), "asks GET"),
        ((line("a"), line("b"), line("a")), 'custom_id "a" comes twice: line 3'),
    ],
)
def test_a_wrong_line_is_told_before_anything_is_asked(tmp_path: Path, rows: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        files.look_through(written(tmp_path / "in.jsonl", *rows))


def test_a_torn_end_is_cut_off_and_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = lines.answered(lines.read(line("a").encode(), 1), 200, "", b"{}")
    path.write_bytes(whole + whole.replace(b'"a"', b'"b"')[:-20])
    with files.Output(path) as output:
        assert output.done() == {"a"}
        assert path.read_bytes() == whole
        output.write(whole.replace(b'"a"', b'"c"'))
    with files.Output(path) as output:
        assert output.done() == {"a", "c"}
        output.empty()
        assert output.done() == set()


def test_an_output_has_one_writer_and_is_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with files.Output(path), pytest.raises(Taken, match="another garra batch"), files.Output(path):
        pass
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary\n")
    with files.Output(notes) as output, pytest.raises(BadRequest, match="no answer of a batch"):
        output.done()
    assert notes.read_text() == "dear diary\n"


def test_a_server_is_given_what_it_takes() -> None:
    known = Window(8)
    assert known.n == 10
    for _ in range(100):
        known.answered()
    assert known.n == 10
    for _ in range(3):
        known.refused()
    assert known.n == 3
    unknown = Window(None)
    for _ in range(10_000):
        unknown.answered()
    assert unknown.n == MOST
    pauses = [unknown.failed() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 8
    unknown.answered()
    assert unknown.failed() == 0.5
    assert Window(3, exact=True).n == 3


class FullDisk(files.Output):
    """Takes nothing any more."""

    def write(self, line: bytes) -> None:
        raise DownloadFailed("cannot write out.jsonl: No space left on device", fix="make room")


async def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"data": [], "choices": []})

    wanted = files.look_through(written(tmp_path / "in.jsonl", *(line(str(n)) for n in range(6))))
    async with test_utils.RawTestServer(answer) as server:
        with FullDisk(tmp_path / "out.jsonl") as output, files.Output(tmp_path / "errors.jsonl") as errors:
            batch = Batch(
                wanted.requests(set()), Progress(wanted.n, 0), output, errors, model=None, key=None, patience_s=5,
                concurrency=2,
            )  # fmt: skip
            with pytest.raises(DownloadFailed, match="No space left"):
                await batch.run([str(server.make_url("/"))])
