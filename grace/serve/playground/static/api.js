// Calls of the server: JSON in, JSON out, and every failure as a sentence.

const BASE = "/playground/api/";
const TRIES = 4;
let token = null;

/** What went wrong, in words; `status` is the HTTP status or 0, `field` what of the request is wrong. */
export class Problem extends Error {
  constructor(message, status, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export function useToken(text) {
  token = text;
}

export const get = (path, query = {}) => call(`${path}${querystring(query)}`);

export const post = (path, body) =>
  call(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });

let last = Promise.resolve();

/** Do one thing after the other: the server searches for one caller at a time. */
export function inTurn(work) {
  const mine = last.then(work);
  last = mine.catch(() => {});
  return mine;
}

function querystring(query) {
  const text = new URLSearchParams(query).toString();
  return text && `?${text}`;
}

async function call(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  for (let tried = 1; ; tried += 1) {
    let response;
    try {
      response = await fetch(BASE + path, { ...options, headers });
    } catch {
      throw new Problem("The server cannot be reached. Is it running?", 0);
    }
    if (response.status === 429 && tried < TRIES) {
      await pause(Number(response.headers.get("retry-after") ?? 1) * 1000);
      continue;
    }
    const told = await response.json().catch(() => null);
    if (response.ok && told !== null) return told;
    throw new Problem(sentence(response.status, told), response.status, told?.error?.field);
  }
}

function sentence(status, told) {
  const error = told?.error;
  if (status === 401 || status === 403) return "The server wants a token that it knows.";
  if (error?.field) return `${error.field}: ${error.message}`;
  if (error?.message) return `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
  return `The server answered with status ${status}, and did not say why.`;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
