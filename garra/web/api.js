// Talking to garra: with the key, if one is needed, and reading streams event by event.

const KEY = "garra-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** The response; throws Refused with the server's own words. */
export async function call(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: { ...(key && { Authorization: `Bearer ${key}` }), ...(body !== undefined && { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  if (!response.ok) {
    const told = await response.text();
    throw new Refused(response.status, messageOf(told) ?? `HTTP ${response.status}`);
  }
  return response;
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return null;
  }
}

/** The lines of an event stream: what follows `data: `, and comments with their colon. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    rest += value;
    const whole = rest.split("\n");
    rest = whole.pop();
    for (const line of whole) {
      if (line.startsWith("data: ")) yield line.slice(6);
      else if (line.startsWith(":")) yield line;
    }
  }
}
