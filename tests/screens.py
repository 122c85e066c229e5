"""Makes the pictures in docs/img from a real run: `python -m tests.screens`."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import httpx
from playwright.sync_api import expect, sync_playwright
from rich.console import Console
from rich.text import Text

from garra.engine import smoke
from tests.support import Garra, eventually
from tests.tmux import Tmux

IMAGES = Path(__file__).parents[1] / "docs" / "img"
PAGES = {"light": ((1180, 800), "light"), "dark": ((1180, 800), "dark"), "phone": ((390, 844), "dark")}
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    garra = Garra()
    noise = smoke.write_noise_model(garra.root / "noise.gguf")
    garra.configure(f'[profiles.noise]\nmodel = "file:{noise}"\ncontext = 512\n').up("demo")
    try:
        for width, height in ((80, 24), (160, 40)):
            picture_of_the_terminal(garra, width, height)
        pictures_of_the_page(garra)
    finally:
        garra.close()


def picture_of_the_terminal(garra: Garra, width: int, height: int) -> None:
    """While three clients ask, of whom one has to wait."""
    with Tmux(garra, "status", width=width, height=height) as screen:
        screen.shows("▸ demo", "ready")
        ask(garra.url, 20)
        clients = [threading.Thread(target=ask, args=(garra.url, 600)) for _ in range(3)]
        for client in clients:
            client.start()
        eventually(lambda: "decode" in screen.text and "1, " in screen.text, 60)
        text = Text.from_ansi(screen.ansi)
        for client in clients:
            client.join()
    console = Console(width=width, height=height, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(text, end="")
    picture = re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title="garra status"), flags=re.S)
    (IMAGES / f"status-{width}x{height}.svg").write_text(picture)  # without the font it would fetch from elsewhere
    console.file.close()


def ask(url: str, n: int) -> None:
    httpx.post(f"{url}/v1/chat/completions", json={"model": "demo", "messages": STORY, "max_tokens": n}, timeout=120)


def pictures_of_the_page(garra: Garra) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, ((width, height), scheme) in PAGES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            page = context.new_page()
            page.goto(garra.url)
            page.wait_for_selector(".phase.ready")
            page.get_by_label("Message", exact=True).fill("Say hi.")
            page.get_by_label("Message", exact=True).press("Enter")
            expect(page.locator(".assistant .quiet")).to_contain_text("tok/s", timeout=60_000)
            page.screenshot(path=IMAGES / f"page-{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
