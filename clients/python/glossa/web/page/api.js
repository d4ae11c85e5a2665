// Calls of this page's own server. Errors are a Problem with the server's message, code and reason.
const TOKEN = "glossa-token";

export class Problem extends Error {
  constructor(body, status) {
    super(body.error);
    Object.assign(this, {code: body.code ?? "", reason: body.reason ?? "", retryAfter: body.retry_after_s, status});
  }
  // Nobody answers: neither a model nor a server that could say why.
  get isDown() { return !this.status || (this.code === "UNAVAILABLE" && !this.reason); }
}

export const useToken = token => sessionStorage.setItem(TOKEN, token);

async function ask(path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({error: "the page’s own process does not answer; start it with `glossa web`"}, 0);
  }
  if (reply.ok) return reply;
  let problem;
  try { problem = await reply.json(); } catch { problem = {error: `${reply.status} ${reply.statusText}`}; }
  throw new Problem(problem, reply.status);
}

export const get = async (path, signal) => (await ask(path, null, signal)).json();
export const call = async (name, given, signal) => (await ask(`/api/${name}`, given, signal)).json();

// The pieces of an answer, as they come.
export async function* stream(name, given, signal) {
  const reply = await ask(`/api/${name}`, given, signal);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let part;
      try { part = await reader.read(); } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem({error: "the answer broke off: the page’s own process went away"}, 0);
      }
      if (part.done) return;
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const piece = JSON.parse(line);
        if (piece.error && piece.code) throw new Problem(piece, 200);
        yield piece;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
