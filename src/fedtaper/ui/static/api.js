// Talking to the server: every request carries the token that came in the address's fragment.

const KEY = "fedtaper-token";

/** Take the token out of the address, where a glance or a bookmark would keep it. */
export function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", `${location.pathname}#/runs`);
  }
  return sessionStorage.getItem(KEY) !== null;
}

const headers = (more = {}) => ({ "X-Fedtaper-Token": sessionStorage.getItem(KEY) ?? "", ...more });

async function answered(response) {
  if (response.ok) return response;
  let why = `the server answered ${response.status}`;
  try {
    why = (await response.json()).error ?? why;
  } catch { /* not JSON: the status has to do */ }
  throw new Error(why);
}

const address = (path, words = {}) => {
  const query = new URLSearchParams(words).toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
};

export async function get(path, words, signal) {
  const response = await fetch(address(path, words), { headers: headers(), signal });
  return (await answered(response)).json();
}

export async function picture(folder, name) {
  const response = await fetch(address("figure", { folder, name }), { headers: headers() });
  return URL.createObjectURL(await (await answered(response)).blob());
}

export async function post(path, words) {
  const body = JSON.stringify(words);
  const how = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body };
  return (await answered(await fetch(address(path), how))).json();
}

/** Server-sent events over fetch, since EventSource cannot send a header. Comes back if cut. */
export async function follow(since, take, lost) {
  let pause = 1000;
  for (;;) {
    try {
      const response = await answered(await fetch(address("events", { since }), { headers: headers() }));
      pause = 1000;
      lost(null);
      await lines(response.body, (text) => take(JSON.parse(text)));
    } catch (trouble) {
      lost(trouble);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, 15000);
    since = 0; // what changed in between is not known: all of it again
  }
}

async function lines(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) take(event.slice(6));
  }
}
