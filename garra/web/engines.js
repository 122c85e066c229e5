// Profiles, memory and errors, drawn from a snapshot. Elements are kept, so that focus and selection are.

import { call } from "./api.js";
import { byId, element } from "./elements.js";

const UP = ["loading", "ready", "draining", "backoff"];
const MOST_ERRORS = 20;
const cards = new Map();
let chosen = null;

export const model = () => chosen;

class Card {
  constructor(name) {
    this.name = name;
    this.radio = element("input", { type: "radio", name: "profile", value: name });
    this.radio.addEventListener("change", () => choose(name));
    this.phase = element("span", { className: "phase" });
    this.progress = element("progress", { max: 1, hidden: true, ariaLabel: `loading ${name}` });
    this.use = element("p", { className: "quiet" });
    this.note = element("p");
    this.load = element("button", { type: "button", textContent: "Load", ariaLabel: `Load ${name}` });
    this.unload = element("button", { type: "button", textContent: "Unload", ariaLabel: `Unload ${name}` });
    this.load.addEventListener("click", () => this.order("/models/load"));
    this.unload.addEventListener("click", () => this.order("/models/unload"));
    const label = element("label", {}, this.radio, name, this.phase);
    const buttons = element("div", { className: "row" }, this.load, this.unload);
    this.box = element("div", { className: "profile" }, label, this.progress, this.use, this.note, buttons);
  }

  async order(path) {
    choose(this.name);
    try {
      await call(path, { model: this.name });
    } catch (error) {
      complain(this.name, error.message);
    }
  }

  draw(report) {
    const engine = report.engine;
    const cause = engine.cause ? ` (${engine.cause})` : "";
    this.phase.textContent = engine.phase + cause + (engine.pinned ? ", pinned" : "");
    this.phase.className = `phase ${engine.phase}`;
    this.progress.hidden = engine.phase !== "loading";
    if (engine.load_fraction === null) this.progress.removeAttribute("value");
    else this.progress.value = engine.load_fraction;
    this.use.textContent = engine.phase === "ready" ? usage(report) : "";
    this.note.textContent = engine.detail || [...engine.warnings, engine.prompts].filter(Boolean).join("; ") || (report.present ? "" : `not downloaded: garra pull ${this.name}`);
    this.note.className = ["failed", "backoff"].includes(engine.phase) ? "bad" : "quiet";
    this.load.hidden = this.unload.hidden = false;
    this.load.disabled = ["loading", "ready"].includes(engine.phase) || !report.present;
    this.unload.disabled = !UP.includes(engine.phase);
  }
}

function usage(report) {
  const engine = report.engine;
  const words = [`${engine.leases + engine.lingering} of ${engine.slots} slots busy`];
  if (engine.waiting) words.push(`${engine.waiting} waiting, the oldest ${Math.round(engine.oldest_wait_s ?? 0)} s`);
  if (report.recent.p50_ttft_ms !== null) words.push(`TTFT ${Math.round(report.recent.p50_ttft_ms)} ms`);
  if (report.recent.p50_tpot_ms) words.push(`${(1000 / report.recent.p50_tpot_ms).toFixed(0)} tok/s each`);
  return words.join(", ");
}

export function choose(name) {
  chosen = name;
  byId("chosen").textContent = name;
  for (const card of cards.values()) {
    card.radio.checked = card.name === name;
    card.box.classList.toggle("chosen", card.name === name);
  }
}

export function drawSnapshot(seen) {
  byId("about").textContent = `${seen.version} · engine ${seen.engine} · ${seen.url}/v1`;
  const reports = seen.profiles.filter((report) => report.kind === "chat");
  for (const report of reports) {
    const name = report.engine.profile;
    if (!cards.has(name)) {
      cards.set(name, new Card(name));
      byId("profiles").append(cards.get(name).box);
    }
    cards.get(name).draw(report);
  }
  for (const [name, card] of cards) {
    if (reports.some((report) => report.engine.profile === name)) continue;
    card.box.remove();
    cards.delete(name);
  }
  if (!cards.has(chosen) && reports.length) {
    const up = reports.find((report) => report.engine.phase === "ready") ?? reports[0];
    choose(up.engine.profile);
  }
  byId("devices").replaceChildren(...seen.devices.map(device));
}

function device(one) {
  const gib = (mib) => (mib / 1024).toFixed(1);
  const held = one.total_mib - one.free_mib;
  const own = one.used_mib ?? 0;
  const bar = element("div", { className: "bar" }, part("own", own / one.total_mib), part("others", (held - own) / one.total_mib));
  const words = [`garra ${gib(own)} (planned ${gib(one.planned_mib)})`, `others ${gib(held - own)}`, `free ${gib(one.free_mib)} of ${gib(one.total_mib)} GiB`];
  if (one.temperature_c !== null) words.push(`${Math.round(one.temperature_c)} °C`);
  if (one.power_w !== null) words.push(`${Math.round(one.power_w)} W`);
  if (one.throttled.length) words.push(`slowed: ${one.throttled.join(", ")}`);
  return element("div", {}, element("p", { className: "quiet", textContent: `${one.name}: ${words.join(", ")}` }), bar);
}

function part(name, share) {
  const made = element("span", { className: name });
  made.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return made;
}

/** Profiles of which nothing but the name is known: for a key that may talk and nothing else. */
export function drawNames(names) {
  for (const name of names) {
    if (cards.has(name)) continue;
    const card = new Card(name);
    card.load.hidden = card.unload.hidden = true;
    cards.set(name, card);
    byId("profiles").append(card.box);
  }
  if (!cards.has(chosen) && names.length) choose(names[0]);
}

/** A fact of the feed, if it tells of a failure. */
export function drawFact(fact) {
  const failed = fact.kind === "refused" || (fact.kind === "phase" && /^(failed|backoff)/.test(fact.detail));
  if (failed) complain(fact.profile, fact.detail, new Date(fact.at));
}

export function complain(profile, text, at = new Date()) {
  const list = byId("errors");
  list.querySelector(".quiet")?.remove();
  const when = element("time", { className: "stamp", dateTime: at.toISOString(), textContent: `${at.toLocaleTimeString()} ` });
  list.prepend(element("li", {}, when, element("b", { textContent: `${profile} ` }), text));
  while (list.children.length > MOST_ERRORS) list.lastElementChild.remove();
}
