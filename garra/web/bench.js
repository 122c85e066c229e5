// The quick benchmark: garra's own, run by the server; its log line by line.

import { call, lines } from "./api.js";
import { atEnd, byId } from "./elements.js";

let running = null;

export async function run(model) {
  const log = byId("bench-log");
  log.textContent = "";
  running = new AbortController();
  busy(true);
  const say = (line) => atEnd(log, () => log.append(`${line}\n`));
  try {
    const response = await call("/garra/v1/bench", { model }, running.signal);
    for await (const line of lines(response)) {
      const told = JSON.parse(line);
      if (told.line !== undefined) say(told.line);
      else if (told.exit !== 0) say(`ended with status ${told.exit}`);
    }
  } catch (error) {
    say(error.name === "AbortError" ? "stopped" : error.message);
  } finally {
    running = null;
    busy(false);
  }
}

export function stop() {
  running?.abort();
}

function busy(yes) {
  byId("bench-run").disabled = yes;
  byId("bench-stop").disabled = !yes;
}
