// The console's module: fresh fragments without flicker, local times, copies, themes, typed words, keys.
// Pages work without it: it only saves people a click on "reload".

const AWAY_WAIT_MAX_S = 30;
const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const pulseWords = document.getElementById("pulse-words");
const away = document.getElementById("away");
const said = document.getElementById("said");
const freeze = document.getElementById("freeze");

// --- words ---------------------------------------------------------------------------------------------------------

let saidTimer = 0;

function say(words) {
  said.textContent = words;
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => { said.textContent = ""; }, 2500);
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

function two(number) {
  return String(number).padStart(2, "0");
}

/** Write times as this browser's clock has them; the title keeps UTC. */
function localize(root) {
  const today = new Date().toDateString();
  for (const element of root.querySelectorAll("time[datetime]:not(.age)")) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const time = clockTime.format(at);
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const words = at.toDateString() === today ? time : `${day} ${time}`;
    if (element.textContent !== words) element.textContent = words;
  }
}

// --- fresh fragments -----------------------------------------------------------------------------------------------

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset?.key || "" : "";
}

function alike(here, there) {
  return here.nodeType === there.nodeType && here.nodeName === there.nodeName && keyOf(here) === keyOf(there);
}

/** Make a node like another one, and leave alone what is the same: focus, selection and open details stay. */
function become(here, there) {
  if (here.isEqualNode(there)) return;
  if (here.nodeType !== Node.ELEMENT_NODE) {
    if (here.nodeValue !== there.nodeValue) here.nodeValue = there.nodeValue;
    return;
  }
  for (const { name } of [...here.attributes]) {
    if (!there.hasAttribute(name) && !(name === "open" && here.nodeName === "DETAILS")) here.removeAttribute(name);
  }
  for (const { name, value } of there.attributes) {
    if (here.getAttribute(name) !== value) here.setAttribute(name, value);
  }
  becomeAll(here, there);
}

function becomeAll(here, there) {
  const keyed = new Map();
  for (const child of here.children) {
    if (keyOf(child)) keyed.set(`${child.nodeName} ${keyOf(child)}`, child);
  }
  let place = here.firstChild;
  for (const wanted of [...there.childNodes]) {
    const known = keyOf(wanted) ? keyed.get(`${wanted.nodeName} ${keyOf(wanted)}`) : undefined;
    if (known) {
      if (known === place) place = place.nextSibling;
      else here.insertBefore(known, place);
      keyed.delete(`${known.nodeName} ${keyOf(known)}`);
      become(known, wanted);
    } else if (place && !keyOf(place) && alike(place, wanted)) {
      const next = place.nextSibling;
      become(place, wanted);
      place = next;
    } else {
      here.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

let failures = 0;
let timer = 0;
let isFrozen = false;

function show(state, words) {
  pulse.dataset.state = state;
  pulseWords.textContent = words;
}

function later(seconds) {
  clearTimeout(timer);
  timer = setTimeout(refresh, seconds * 1000);
}

async function refresh() {
  const seconds = Number(live.dataset.refresh);
  if (isFrozen) return;
  if (document.hidden) return later(seconds);
  try {
    const answer = await fetch(live.dataset.address, {
      headers: { "x-popwheel-live": "1", accept: "text/html" },
      cache: "no-store",
      redirect: "manual",
      signal: AbortSignal.timeout(15000),
    });
    if (answer.type === "opaqueredirect") return location.reload();
    const text = await answer.text();
    if (answer.status >= 500 || !answer.headers.get("content-type")?.startsWith("text/html")) throw new Error(`status ${answer.status}`);
    if (isFrozen) return;
    const fresh = new DOMParser().parseFromString(`<div id="live">${text}</div>`, "text/html").getElementById("live");
    localize(fresh);
    becomeAll(live, fresh);
    if (failures) say("Reachable again");
    failures = 0;
    away.hidden = true;
    show("live", `live, ${clockTime.format(new Date())}`);
  } catch {
    failures += 1;
    away.textContent = "Not reachable, trying again. What you see is from before.";
    away.hidden = false;
    show("away", "not reachable");
  }
  later(failures ? Math.min(AWAY_WAIT_MAX_S, seconds * 2 ** Math.min(failures - 1, 4)) : seconds);
}

if (live?.dataset.refresh) {
  freeze.hidden = false;
  freeze.addEventListener("click", () => {
    isFrozen = !isFrozen;
    freeze.setAttribute("aria-pressed", String(isFrozen));
    show(isFrozen ? "still" : "live", isFrozen ? "frozen" : pulseWords.textContent);
    if (!isFrozen) refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) later(0); });
  show("live", `live, ${clockTime.format(new Date())}`);
  later(document.querySelector("#live .skeleton") ? 0.05 : Number(live.dataset.refresh));
} else {
  show("still", clockTime.format(new Date()));
}

// --- what comes to a topic -----------------------------------------------------------------------------------------

const TAIL_ROWS_MAX = 200;
const tail = document.getElementById("tail");

if (tail) {
  const words = document.getElementById("tail-words");
  const rows = document.getElementById("tail-rows");
  const form = document.getElementById("tail-row");
  const stop = document.getElementById("tail-stop");
  let source;
  let shown = 0;
  let skipped = 0;
  let silent = "";

  const tell = (state) => {
    const passed = skipped ? `, ${skipped.toLocaleString()} passed over` : "";
    words.textContent = `${state}: ${shown.toLocaleString()} shown${passed}${silent ? `, ${silent} does not answer` : ""}`;
  };

  const end = (state) => {
    source?.close();
    source = undefined;
    stop.textContent = "Follow";
    tell(state);
    show("still", "stopped");
  };

  const add = (message) => {
    const row = document.importNode(form.content, true);
    const slot = (name) => row.querySelector(`[data-slot=${name}]`);
    const id = slot("id");
    id.textContent = message.message_id.slice(-8);
    id.title = message.message_id;
    id.href = `${tail.dataset.messages}/${encodeURIComponent(message.message_id)}`;
    const stored = document.createElement("time");
    stored.dateTime = new Date(message.stored_ms).toISOString();
    stored.title = stored.dateTime;
    slot("stored").append(stored);
    slot("tag").textContent = message.tag;
    slot("keys").textContent = message.keys.join(", ").slice(0, 120);
    slot("where").textContent = `${message.broker} · q${message.queue_id} · ${message.queue_offset.toLocaleString()}`;
    slot("body").textContent = message.hidden ? "not for your token" : message.body.slice(0, 60);
    localize(row);
    rows.prepend(row);
    while (rows.children.length > TAIL_ROWS_MAX) rows.lastElementChild.remove();
  };

  const begin = () => {
    source = new EventSource(tail.dataset.events);
    stop.textContent = "Stop";
    source.addEventListener("begun", () => { tell("Following"); show("live", "following"); });
    source.addEventListener("message", (event) => { shown += 1; add(JSON.parse(event.data)); tell("Following"); });
    source.addEventListener("skipped", (event) => { skipped += JSON.parse(event.data).count; tell("Following"); });
    source.addEventListener("unanswered", (event) => {
      silent = JSON.parse(event.data).unanswered.map((each) => each.broker).join(", ");
      tell("Following");
    });
    source.addEventListener("end", (event) => end(`Ended, ${JSON.parse(event.data).reason}`));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) end("Refused: eight are open at the same time, or the topic is gone");
      else { tell("Not reachable, trying again"); show("away", "not reachable"); }
    });
  };

  stop.hidden = false;
  stop.addEventListener("click", () => { if (source) end("Stopped"); else begin(); });
  begin();
}

// --- copies --------------------------------------------------------------------------------------------------------

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    say(document.execCommand("copy") ? "Copied" : "This browser does not let pages copy");
    field.remove();
  }
}

// --- light and dark ------------------------------------------------------------------------------------------------

const theme = document.getElementById("theme");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  theme.value = isDark() ? "light" : "dark";
  theme.textContent = isDark() ? "Light" : "Dark";
}

theme?.form.addEventListener("submit", (event) => {
  event.preventDefault();
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  document.cookie = `popwheel_theme=${chosen}; path=/; max-age=31536000; samesite=lax`;
  nameTheme();
});
if (theme) nameTheme();

// --- forms and clicks ----------------------------------------------------------------------------------------------

/** A form that destroys something can be sent once the word that it asks for is typed. The server looks at it, too. */
for (const form of document.querySelectorAll("form[data-typed]")) {
  const word = form.querySelector("input[data-word]");
  const send = form.querySelector("button[data-sends]");
  const look = () => { send.disabled = word.value !== word.dataset.word; };
  word.addEventListener("input", look);
  look();
}

/** A form for many things is sent again and again, a second's share at a time, and says how far it is. */
for (const label of document.querySelectorAll("[data-pace]")) label.hidden = false;

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || !form.hasAttribute("data-paced")) return;
  event.preventDefault();
  const fields = new FormData(form);
  const rate = Number(fields.get("rate"));
  const wanted = Number(fields.get("limit"));
  let left = wanted;
  form.querySelectorAll("input, button").forEach((each) => { each.disabled = true; });
  const bar = document.createElement("progress");
  bar.max = wanted;
  bar.setAttribute("aria-label", "How far it is");
  form.append(bar);
  while (left > 0) {
    const began = Date.now();
    fields.set("limit", String(Math.min(rate, left)));
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(fields), redirect: "manual" }).catch(() => undefined);
    if (answer?.type !== "opaqueredirect") break;
    left -= Math.min(rate, left);
    bar.value = wanted - left;
    if (left > 0) await new Promise((resolve) => { setTimeout(resolve, Math.max(0, 1000 - (Date.now() - began))); });
  }
  if (left > 0) say(`Stopped after ${(wanted - left).toLocaleString()}: the server refused the rest, or is away`);
  else location.assign(location.pathname + location.search);
});

document.addEventListener("click", (event) => {
  const copied = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (copied) copy(copied.dataset.copy);
});

// --- keys ----------------------------------------------------------------------------------------------------------

const GOES = { o: "/", t: "/topics", g: "/groups", h: "/held", m: "/messages", d: "/timers", c: "/clients", r: "/replicas", l: "/polls", u: "/trouble", b: "/balance", s: "/settings" };
let isGoing = false;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.querySelector(".filters input:not([type=hidden])");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (event.key === "p" && freeze && !freeze.hidden) {
    freeze.click();
  } else if (isGoing && GOES[event.key]) {
    location.href = GOES[event.key];
  }
  isGoing = event.key === "g" && !isGoing;
});

localize(document);
document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
