// Wires the page: a snapshot a second while somebody looks, facts as they happen, and what the buttons do.

import { Refused, call, lines, useKey } from "./api.js";
import * as bench from "./bench.js";
import * as chat from "./chat.js";
import { byId } from "./elements.js";
import { drawFact, drawNames, drawSnapshot, model } from "./engines.js";

const EVERY_MS = 1000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Whether it answered. */
async function look() {
  try {
    drawSnapshot(await (await call("/garra/v1/status")).json());
    byId("key-form").hidden = true;
    return true;
  } catch (error) {
    await missed(error);
    return false;
  }
}

async function missed(error) {
  if (!(error instanceof Refused)) {
    byId("about").textContent = "garra does not answer; trying again";
    return;
  }
  byId("about").textContent = error.message;
  byId("key-form").hidden = false;
  if (error.status === 403) await onlyNames(); // a key that may talk, but not see the engines
}

async function onlyNames() {
  drawNames((await (await call("/v1/models")).json()).data.map((one) => one.id));
}

async function watch() {
  for (;;) {
    if (!document.hidden) await look();
    await pause(EVERY_MS);
  }
}

async function follow() {
  for (;;) {
    try {
      for await (const line of lines(await call("/garra/v1/events"))) drawFact(JSON.parse(line));
    } catch {
      // garra starts again, or wants a key: `look` tells it
    }
    await pause(5 * EVERY_MS);
  }
}

function send() {
  const text = byId("text").value.trim();
  if (!text || byId("send").disabled || model() === null) return;
  byId("text").value = "";
  chat.ask(model(), text, byId("stream").checked);
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && chat.stop());
byId("stop").addEventListener("click", chat.stop);
byId("fresh").addEventListener("click", chat.forget);
byId("bench-run").addEventListener("click", () => bench.run(model()));
byId("bench-stop").addEventListener("click", bench.stop);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
  look();
});

watch();
follow();
