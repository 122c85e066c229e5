"""The web page in headless Chromium, over a real garra."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from garra.engine import smoke
from tests.engine.conftest import Make
from tests.support import Garra, eventually

CHROMIUM = shutil.which("chromium")
WAIT_MS = 60_000
LAYOUTS = {"light": ((1200, 850), "light"), "dark": ((1200, 850), "dark"), "phone": ((390, 844), "light")}
MARKUP = '<img src="x" onerror="document.title = 1"><b>bold</b>'


@pytest.fixture
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "apt install chromium"
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


class Visit:
    """A page with everything it complains about and everything it asks for."""

    def __init__(self, browser: Browser, garra: Garra, layout: str = "light") -> None:
        (width, height), scheme = LAYOUTS[layout]
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda one: self.complaints.append(f"{one.type}: {one.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.add("/".join(request.url.split("/")[:3])))
        self.url = garra.url
        self.page.goto(self.url)

    def card(self, profile: str) -> Any:
        return self.page.locator(".profile", has=self.page.get_by_role("radio", name=profile))

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_label("Message", exact=True).press("Enter")

    @property
    def answer(self) -> Any:
        return self.page.locator(".assistant").last

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert self.asked == {self.url}, "nothing from anywhere else"


@pytest.fixture
def two(demo_model: Path, tmp_path: Path) -> Iterator[Garra]:
    """`demo`, READY, and `noise`, cold."""
    noise = smoke.write_noise_model(tmp_path / "noise.gguf")
    one = Garra().configure(f'[profiles.noise]\nmodel = "file:{noise}"\ncontext = 512\nslots = 1\n').up("demo")
    yield one
    one.close()


def test_the_main_job(browser: Browser, two: Garra) -> None:
    visit = Visit(browser, two)
    page = visit.page
    expect(visit.card("demo").locator(".phase")).to_have_text("ready")
    expect(page.locator("#chosen")).to_have_text("demo")
    visit.card("noise").get_by_role("button", name="Load noise", exact=True).click()
    expect(visit.card("noise").locator(".phase")).to_have_text("ready")
    page.get_by_role("radio", name="demo").check()
    visit.say("Say hi.")
    expect(visit.answer).to_contain_text("TTFT")
    expect(visit.answer.locator(".quiet")).to_contain_text("tok/s")
    said = visit.answer.locator(".text").inner_text()
    assert len(said) > 3
    page.get_by_label("stream").uncheck()
    visit.say("Say hi again.")
    expect(visit.answer.locator(".quiet")).to_contain_text("tok/s")
    page.get_by_label("stream").check()
    visit.say("Write a very long story about a fox, in many chapters.")
    expect(visit.answer.locator(".text")).not_to_be_empty()
    page.get_by_role("button", name="Stop").first.click()
    expect(visit.answer.locator(".quiet")).to_contain_text("stopped")
    eventually(lambda: two.engine()["leases"] == 0)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#devices")).to_contain_text("planned")
    visit.card("noise").get_by_role("button", name="Unload noise").click()
    expect(visit.card("noise").locator(".phase")).to_contain_text("cold")
    visit.close()


def test_the_quick_benchmark(browser: Browser, two: Garra) -> None:
    visit = Visit(browser, two)
    page = visit.page
    page.locator("#bench summary").click()
    expect(page.locator("#chosen")).to_have_text("demo")
    page.locator("#bench-run").click()
    expect(page.locator("#bench-log")).to_contain_text("warming up")
    page.locator("#bench-stop").click()
    expect(page.locator("#bench-log")).to_contain_text("stopped")
    eventually(lambda: two.engine()["leases"] == 0)
    page.locator("#bench-run").click()
    expect(page.locator("#bench-log")).to_contain_text("TTFT ms p50", timeout=120_000)
    expect(page.locator("#bench-log")).to_contain_text("per stream")
    expect(page.locator("#bench-run")).to_be_enabled()
    visit.close()


def test_a_crash_is_explained(browser: Browser, two: Garra) -> None:
    visit = Visit(browser, two)
    expect(visit.card("demo").locator(".phase")).to_have_text("ready")
    visit.say("Write a very long story about a fox.")
    expect(visit.answer.locator(".text")).not_to_be_empty()
    os.kill(two.engine_pid(), signal.SIGKILL)
    expect(visit.answer.locator(".bad")).to_contain_text("SIGKILL")
    expect(visit.page.locator("#errors")).to_contain_text("backoff (crash)")
    expect(visit.page.locator("#errors")).to_contain_text("SIGKILL")
    expect(visit.card("demo").locator(".phase")).to_have_text("ready")
    assert [one for one in visit.complaints if "INCOMPLETE_CHUNKED" not in one] == [], "an answer that broke has no end"
    visit.complaints.clear()
    visit.close()


def events(*deltas: dict[str, str]) -> str:
    told = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return "".join(f"data: {json.dumps(one)}\n\n" for one in told)


def test_what_a_model_says_is_text_and_its_reasoning_is_folded(browser: Browser, stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    visit = Visit(browser, garra)
    page = visit.page
    done = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    bodies = [
        ": garra queued position=3\n\n" + events({"reasoning_content": MARKUP}, {"content": MARKUP}) + done,
        events({"content": "half"}) + 'data: {"error":{"message":"the engine died (SIGSEGV)","code":503}}\n\n',
        events({"content": "half"}),
    ]

    def answer(route: Route) -> None:
        route.fulfill(body=bodies.pop(0), content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    visit.say(MARKUP)
    expect(visit.answer.locator(".text").last).to_have_text(MARKUP)
    expect(page.locator(".user .text")).to_have_text(MARKUP)
    expect(visit.answer.locator("details .text")).to_be_hidden()
    visit.answer.locator("summary").click()
    expect(visit.answer.locator("details .text")).to_have_text(MARKUP)
    assert page.locator("#said img, #said b").count() == 0
    visit.say("again")
    expect(visit.answer.locator(".bad")).to_have_text("the engine died (SIGSEGV)")
    visit.say("again")
    expect(visit.answer.locator(".bad")).to_have_text("the answer broke off")
    assert page.title() == "garra"
    visit.close()


def test_foreign_script_does_not_run(browser: Browser, stubbed: Make) -> None:
    visit = Visit(browser, stubbed("late").up("demo"))
    visit.page.evaluate("""() => {
        const one = document.createElement("script");
        one.textContent = "document.title = 'taken'";
        document.body.append(one);
        const other = document.createElement("img");
        other.src = "http://127.0.0.1:9/x.png";
        document.body.append(other);
    }""")
    eventually(lambda: visit.page.title() and len(visit.complaints) >= 2)  # asked: else nothing is told either
    assert all("Content Security Policy" in one for one in visit.complaints)
    assert visit.page.title() == "garra"
    visit.complaints.clear()
    visit.asked.discard("http://127.0.0.1:9")  # which was refused
    visit.close()


def test_with_keys_the_page_asks_for_one(browser: Browser, stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    key, boss = (
        json.loads(garra.run("keys", "create", *words, "--json", check=True).stdout)["key"]
        for words in (("plain",), ("boss", "--admin"))
    )
    visit = Visit(browser, garra)
    page = visit.page
    expect(page.locator("#about")).to_contain_text("a key is needed")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#about")).to_contain_text("administrator")
    expect(page.get_by_role("radio", name="demo")).to_be_visible()
    page.get_by_role("radio", name="demo").check()
    visit.say("hi")
    expect(visit.answer.locator(".text")).to_have_text("x" * 10)
    page.get_by_label("Key").fill(boss)
    page.get_by_role("button", name="Use").click()
    expect(visit.card("demo").locator(".phase")).to_have_text("ready")
    expect(page.locator("#key-form")).to_be_hidden()
    refusals = [one for one in visit.complaints if " 401 " in one or " 403 " in one]
    assert refusals == visit.complaints, "a browser writes down what was refused"
    visit.complaints.clear()
    visit.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_anyone_can_use_it(browser: Browser, stubbed: Make, layout: str) -> None:
    """Nothing serious by axe's rules, nothing wider than the screen, everything by keyboard."""
    garra = stubbed("late").up("demo")
    visit = Visit(browser, garra, layout)
    page = visit.page
    expect(visit.card("demo").locator(".phase")).to_have_text("ready")
    visit.say("hi")
    expect(visit.answer.locator(".quiet")).to_contain_text("TTFT")
    page.locator("#bench summary").click()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_role("radio", name="demo").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#chosen")).not_to_have_text("demo")
    page.get_by_role("radio", name="demo").focus()
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("() => document.activeElement.id") == "text":
            break
        page.keyboard.press("Tab")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.locator(".user")).to_have_count(2)
    visit.close()


def test_browsers_get_the_page_and_everybody_else_a_word(served: Garra) -> None:
    with httpx.Client(base_url=served.url, timeout=180) as client:
        html = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert html.text.startswith("<!doctype html>")
        assert "default-src 'none'" in html.headers["Content-Security-Policy"]
        again = client.get("/", headers={"Accept": "text/html", "If-None-Match": html.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        for method in ("GET", "HEAD"):
            assert client.request(method, "/").headers["Content-Type"].startswith("text/plain")
        assert client.get("/").text == "Ollama is running"
        assert client.get("/web/main.js").headers["Content-Type"] == "text/javascript; charset=utf-8"
        for path in ("/web/", "/web/nothing.js", "/web/%2e%2e/__init__.py", "/web/../app.py"):
            assert client.get(path).status_code == 404


def test_one_benchmark_at_a_time(served: Garra) -> None:
    ask: dict[str, Any] = {"json": {"model": "demo"}, "timeout": 60}
    with httpx.Client(base_url=served.url) as client, client.stream("POST", "/garra/v1/bench", **ask) as running:
        lines = running.iter_lines()  # kept: a reader that is thrown away closes the answer
        assert next(lines).startswith("data: ")
        second = httpx.post(f"{served.url}/garra/v1/bench", **ask)
        assert second.status_code == 409
        assert "runs already" in second.json()["error"]["message"]
    server = psutil.Process(served.status()["pid"])
    eventually(lambda: len(server.children()) == 1)  # its engine
    eventually(lambda: served.engine()["leases"] == 0)
    assert httpx.get(f"{served.url}/garra/v1/bench").status_code == 404
