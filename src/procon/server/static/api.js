// Talks to the server: token, errors in words, a full queue waited for, and one stream of changes that reconnects.

const KEY = "procon-token";
let token = sessionStorage.getItem(KEY) ?? "";

export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

function askForToken() {
  const dialog = document.querySelector("#ask");
  if (askForToken.asked) return askForToken.asked;
  askForToken.asked = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      token = document.querySelector("#token").value.trim();
      sessionStorage.setItem(KEY, token);
      askForToken.asked = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return askForToken.asked;
}

export async function request(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    await askForToken();
    return request(path, options);
  }
  let message = `The server answered ${answer.status}.`;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* no JSON: the status has to do */ }
  throw new Refused(answer.status, message, Number(answer.headers.get("retry-after")) || 0);
}

/** Where the routes of a model begin; its name may have spaces. */
export const modelPath = (name) => `/v1/models/${encodeURIComponent(name)}`;

/** Whether the same request may succeed later: the server is away, busy, or has failed. */
export const mayPass = (error) => !(error instanceof Refused) || [0, 408, 429].includes(error.status) || error.status >= 500;

/** Save what a path answers as a file. */
export async function download(path, name, options) {
  const url = URL.createObjectURL(await (await request(path, options)).blob());
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

export function send(path, method, body) {
  return json(path, { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

/** Post an image; where the queue is full, wait as long as the server says and try again. */
export async function sendImage(path, blob, name, onWait = () => {}) {
  for (let attempt = 0; ; attempt++) {
    const form = new FormData();
    form.append("image", blob, name);
    try {
      return await json(path, { method: "POST", body: form });
    } catch (error) {
      if (error.status !== 503 || attempt >= 5) throw error;
      onWait(error.retryAfter || 1);
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter || 1)));
    }
  }
}

/** Send a form or a file and hear how much of it has left; fetch cannot tell. */
export function upload(path, body, onProgress, method = "POST") {
  return new Promise((resolve, reject) => {
    const sender = new XMLHttpRequest();
    sender.open(method, path);
    if (token) sender.setRequestHeader("authorization", `Bearer ${token}`);
    sender.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    sender.onerror = () => reject(new Refused(0, "The connection was lost while the files were sent."));
    sender.onload = async () => {
      if (sender.status === 401) {
        await askForToken();
        return upload(path, body, onProgress, method).then(resolve, reject);
      }
      let answer = {};
      try { answer = JSON.parse(sender.responseText); } catch { /* told below */ }
      if (sender.status < 300) resolve(answer);
      else reject(new Refused(sender.status, answer.error ?? `The server answered ${sender.status}.`));
    };
    sender.send(body);
  });
}

/** Show an image of the server; an <img> cannot carry a token, so then its bytes are fetched. */
export async function showImage(element, path) {
  if (!token) {
    element.src = path;
    return;
  }
  const blob = await (await request(path)).blob();
  element.src = URL.createObjectURL(blob);
  element.addEventListener("load", () => URL.revokeObjectURL(element.src), { once: true });
}

/** The state of the server whenever it changes, for ever; `onLink` hears whether the connection stands. */
export async function follow(onState, onLink) {
  for (let wait = 500; ; wait = Math.min(wait * 1.6, 5000)) {
    const lost = new AbortController();
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => lost.abort(), 25000); // the server says something every ten seconds
    };
    try {
      alive();
      const answer = await request("/v1/events", { signal: lost.signal, cache: "no-store" });
      onLink(true);
      wait = 500;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        alive();
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data: "));
          if (data) onState(JSON.parse(data.slice(6)));
        }
      }
    } catch { /* told below */ }
    clearTimeout(timer);
    onLink(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
