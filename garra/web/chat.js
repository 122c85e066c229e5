// The conversation: asks, shows the answer as it comes, and what it took.

import { call, lines } from "./api.js";
import { atEnd, byId, element } from "./elements.js";

const messages = [];
let running = null;

/** One answer on the screen. */
class Answer {
  constructor() {
    this.began = performance.now();
    this.firstAt = null;
    this.text = "";
    this.thought = null;
    this.body = element("div", { className: "text" });
    this.figures = element("p", { className: "quiet", textContent: "waiting…" });
    this.turn = element("div", { className: "turn assistant" }, this.body, this.figures);
    atEnd(byId("said"), () => byId("said").append(this.turn));
  }

  add(delta) {
    const thought = delta.reasoning_content ?? "";
    const said = delta.content ?? "";
    if (!thought && !said) return;
    if (this.firstAt === null) {
      this.firstAt = performance.now();
      this.figures.textContent = `TTFT ${Math.round(this.firstAt - this.began)} ms …`;
    }
    atEnd(byId("said"), () => {
      if (thought) this.think(thought);
      this.text += said;
      this.body.append(said);
    });
  }

  think(text) {
    if (this.thought === null) {
      this.thought = element("div", { className: "text" });
      this.turn.prepend(element("details", {}, element("summary", { textContent: "Reasoning" }), this.thought));
    }
    this.thought.append(text);
  }

  waits(comment) {
    if (this.firstAt === null) this.figures.textContent = comment.replace(/^:\s*(garra )?/, "");
  }

  /** `timings` are the engine's own; TTFT is what the browser saw. */
  end(timings, usage, note) {
    const words = [];
    if (this.firstAt !== null) words.push(`TTFT ${Math.round(this.firstAt - this.began)} ms`);
    if (timings?.predicted_per_second) words.push(`${timings.predicted_per_second.toFixed(1)} tok/s`);
    const tokens = timings?.predicted_n ?? usage?.completion_tokens;
    if (tokens) words.push(`${tokens} tokens`);
    if (timings?.cache_n) words.push(`${timings.cache_n} of the prompt cached`);
    if (note) words.push(note);
    this.figures.textContent = words.join(" · ");
    if (this.text) messages.push({ role: "assistant", content: this.text });
  }

  fail(error) {
    this.end(null, null, "");
    this.turn.append(element("p", { className: "bad", textContent: error.message }));
  }
}

async function streamed(answer, response) {
  let timings = null;
  let usage = null;
  let finish = null;
  for await (const line of lines(response)) {
    if (line.startsWith(":")) answer.waits(line);
    if (line.startsWith(":") || line === "[DONE]") continue;
    const event = JSON.parse(line);
    if (event.error) throw new Error(event.error.message);
    timings = event.timings ?? timings;
    usage = event.usage ?? usage;
    for (const choice of event.choices ?? []) {
      answer.add(choice.delta ?? {});
      finish = choice.finish_reason ?? finish;
    }
  }
  if (finish === null) throw new Error("the answer broke off");
  answer.end(timings, usage, finish === "length" ? "cut at the limit" : "");
}

async function whole(answer, response) {
  const told = await response.json();
  answer.add(told.choices[0].message);
  answer.end(told.timings, told.usage, told.choices[0].finish_reason === "length" ? "cut at the limit" : "");
}

/** Asks the model; the answer is on the screen when this returns. */
export async function ask(model, text, stream) {
  messages.push({ role: "user", content: text });
  byId("said").append(element("div", { className: "turn user" }, element("div", { className: "text", textContent: text })));
  const answer = new Answer();
  running = new AbortController();
  busy(true);
  try {
    const body = { model, messages, stream, ...(stream && { stream_options: { include_usage: true } }) };
    const response = await call("/v1/chat/completions", body, running.signal);
    await (stream ? streamed(answer, response) : whole(answer, response));
  } catch (error) {
    if (error.name === "AbortError") answer.end(null, null, "stopped");
    else answer.fail(error);
  } finally {
    running = null;
    busy(false);
  }
}

export function stop() {
  running?.abort();
}

export function forget() {
  stop();
  messages.length = 0;
  byId("said").replaceChildren();
}

function busy(yes) {
  byId("send").disabled = yes;
  byId("stop").disabled = !yes;
}
