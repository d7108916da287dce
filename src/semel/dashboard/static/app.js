// What is live, what is asked before it is done, and the keyboard. Text is set as text, never as markup.
import { Chart, formats } from "./charts.js";

const body = document.body, root = body.dataset.root;
const texts = JSON.parse(body.dataset.texts);
const t = (text, values = {}) => Object.entries(values).reduce((s, [k, v]) => s.replace(`{${k}}`, v), texts[text] ?? text);
const $ = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const number = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en"));

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function toast(text, kind = "") {
  const made = element("p", `toast ${kind}`, text);
  $("#toasts").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 9000 : 4500);
}

async function post(path, data) {
  const answer = await fetch(root + path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data), credentials: "same-origin", redirect: "error",
  });
  const text = await answer.text();
  let found = {};
  try { found = JSON.parse(text); } catch { found = { title: text }; }
  if (!answer.ok) throw new Error(t(found.title || "") || String(answer.status));
  return found;
}

// ------------------------------------------------------------------ times
const wholeSeconds = (s) => (s < 10 ? `${Math.floor(s)} s` : formats.seconds(s));
function ago(seconds) {
  if (Math.abs(seconds) < 1) return t("just now");
  return t(seconds > 0 ? "{span} ago" : "in {span}", { span: wholeSeconds(Math.abs(seconds)) });
}
setInterval(() => {
  for (const time of all("time[datetime]")) time.textContent = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
}, 5000);

// On narrow screens rows have no header: numbers bring their names along.
function labels() {
  for (const table of all("table.rows")) {
    const names = all("th", table).map((head) => head.textContent);
    for (const row of all("tbody tr", table)) [...row.cells].forEach((cell, i) => { cell.dataset.label = names[i] ?? ""; });
  }
}
labels();

// ------------------------------------------------------------------ confirm, then do
function confirm({ title, text, yes, danger, count }) {
  const dialog = $("#confirm");
  $("#confirm-title").textContent = title;
  $("#confirm-text").textContent = text;
  const button = $("#confirm-yes");
  button.textContent = yes;
  button.classList.toggle("danger", Boolean(danger));
  const figure = $("#confirm-count");
  figure.hidden = !count;
  if (count) {
    figure.textContent = "…";
    fetch(count, { credentials: "same-origin" })
      .then((answer) => answer.json())
      .then((found) => { figure.textContent = t("{n} events match now", { n: number(found.number) + (found.capped ? "+" : "") }); })
      .catch(() => { figure.hidden = true; });
  }
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => { dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }); });
}

function tell(found) {
  if (found.changed === 0) return toast(t("Nothing was changed: somebody was faster."));
  toast(t("Done."));
}

async function act(button) {
  const { post: path, body: data, title, text, yes, count } = button.dataset;
  if (!(await confirm({ title, text, yes, count, danger: button.classList.contains("danger") }))) return;
  button.disabled = true;
  try {
    const found = await post(path, JSON.parse(data));
    if (found.verb) { toast(t("It runs; the page shows how far it is.")); button.disabled = false; return; }
    tell(found);
    setTimeout(() => location.reload(), 700);
  } catch (error) {
    toast(error.message, "bad");
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.post) act(button);
  if (button.dataset.copy) navigator.clipboard?.writeText(button.dataset.copy).then(() => toast(t("Copied.")));
  if ("refresh" in button.dataset) location.reload();
  if ("keys" in button.dataset) $("#keys").showModal();
  if (button.dataset.cancel) post("/api/jobs/cancel", { id: button.dataset.cancel }).catch((error) => toast(error.message, "bad"));
  if (button.dataset.range) range(button.dataset.range);
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.dataset.form) {
    event.preventDefault();
    const { title, text, yes } = form.dataset;
    if (!(await confirm({ title, text, yes }))) return;
    try { await post(form.dataset.form, Object.fromEntries(new FormData(form))); location.reload(); } catch (error) { toast(error.message, "bad"); }
  }
  if (form.dataset.edit) {
    event.preventDefault();
    const problem = $("[data-problem]", form);
    try {
      JSON.parse(form.elements.payload.value);
      const made = await post("/api/events/edit", { id: form.dataset.edit, payload: form.elements.payload.value });
      const to = new URL(form.dataset.done, location.href);
      to.searchParams.set("id", made.id);
      location.assign(to);
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error instanceof SyntaxError ? t("The payload is not JSON.") : error.message;
    }
  }
  // Empty fields stay out of the address.
  if (form.method === "get") for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
});

for (const select of all("[data-preference]")) {
  select.addEventListener("change", () => post("/api/preferences", { [select.dataset.preference]: select.value }).then(() => location.reload(), (error) => toast(error.message, "bad")));
}
for (const select of all("[data-submit]")) select.addEventListener("change", () => select.form.requestSubmit());

// ------------------------------------------------------------------ figures and charts
const charts = all(".chart").map((figure) => new Chart(figure, t("Figures come in a moment")));
const history = { recent: charts.length ? JSON.parse($("#charts").dataset.recent) : [], minutes: [] };
let chosen = "recent";
const redraw = () => charts.forEach((chart) => chart.show(history[chosen]));

async function range(name) {
  chosen = name;
  for (const button of all("[data-range]")) button.setAttribute("aria-pressed", String(button.dataset.range === name));
  if (name === "minutes") {
    try {
      const address = new URL(`${root}/api/overview`, location.href);
      address.search = location.search;
      history.minutes = (await (await fetch(address, { credentials: "same-origin" })).json()).minutes;
    } catch (error) { toast(error.message, "bad"); }
  }
  redraw();
}
redraw();

function figures(point) {
  const capped = { backlog: "NEW", failed: "FAILED", dead: "DEAD" };
  for (const place of all("[data-figure]")) {
    const name = place.dataset.figure, value = point[name];
    const more = point.capped.includes(capped[name] ?? name) ? "+" : "";
    if (place.classList.contains("count")) { place.hidden = !value; place.textContent = formats.count(value ?? 0) + more; continue; }
    place.textContent = value == null ? "–" : name === "oldest" ? formats.seconds(value) : name === "sent" ? formats.rate(value) : formats.count(value) + more;
    place.toggleAttribute("data-zero", !value);
  }
}
if (history.recent.length) figures(history.recent.at(-1));

// Parts of a page that follow the figures are fetched anew when these have changed.
let seen = null, fetching = false;
async function parts(point) {
  const watched = all("[data-part]");
  const now = watched.map((part) => part.dataset.watch.split(" ").map((name) => point[name]).join()).join(";");
  seen ??= now;
  if (!watched.length || now === seen || fetching || document.querySelector("dialog[open]")) return;
  fetching = true;
  try {
    const fresh = new DOMParser().parseFromString(await (await fetch(location.href, { credentials: "same-origin" })).text(), "text/html");
    for (const part of watched) {
      const other = $(`[data-part="${part.dataset.part}"]`, fresh);
      if (other) part.replaceWith(document.importNode(other, true));
    }
    labels();
    seen = now;
  } catch { /* the next figures try again */ } finally { setTimeout(() => { fetching = false; }, 2000); }
}

let known = [];
setInterval(() => { if ($("#jobs").childElementCount) jobs(known); }, 3000); // those that have ended go
function jobs(list) {
  known = list;
  const running = list.filter((job) => job.state === "running" || (job.finished_at && Date.now() - Date.parse(job.finished_at) < 12000));
  $("#jobs").replaceChildren(...running.map((job) => {
    const line = element("div", "job");
    line.dataset.job = job.id;
    line.append(element("b", "", t(`verb ${job.verb}`)), element("span", `state ${{ running: "busy", finished: "good", cancelled: "warn", failed: "bad" }[job.state]}`, t(`job ${job.state}`)));
    const bar = element("progress");
    bar.max = 1;
    bar.value = job.share;
    line.append(bar, element("span", "num", t("{n} changed", { n: number(job.changed) })), element("span", "soft", job.actor));
    if (job.error) line.append(element("span", "bad", job.error));
    if (job.state === "running") { const button = element("button", "button small", t("Cancel")); button.dataset.cancel = job.id; line.append(button); }
    return line;
  }));
}

// ------------------------------------------------------------------ the stream, only while the page is seen
const live = $("#live");
function state(name, text) { live.dataset.state = name; $("span", live).textContent = t(text); }
let source = null;
function connect() {
  if (source || document.hidden) return;
  source = new EventSource(body.dataset.live);
  source.addEventListener("open", () => state("on", "live"));
  source.addEventListener("error", () => state("off", "no connection"));
  source.addEventListener("point", (event) => {
    const point = JSON.parse(event.data);
    if (!point) return;
    figures(point);
    parts(point);
    if (history.recent.at(-1)?.at !== point.at) history.recent.push(point);
    if (history.recent.length > 180) history.recent.shift();
    if (chosen === "recent") redraw();
  });
  source.addEventListener("trouble", (event) => { const banner = $("#trouble"); if (banner) banner.hidden = event.data !== "true"; });
  source.addEventListener("jobs", (event) => jobs(JSON.parse(event.data)));
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { source?.close(); source = null; state("waiting", "asleep"); } else connect();
});
addEventListener("pagehide", () => { source?.close(); source = null; });
connect();

// ------------------------------------------------------------------ keyboard
let at = -1, going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const rows = all(".rows tbody tr");
  if (going) {
    going = false;
    const to = { o: "/", b: "/outbox", d: "/dead", i: "/inbox" }[event.key];
    const link = to && all(".side a").find((each) => new URL(each.href).pathname === root + to);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  switch (event.key) {
    case "/": event.preventDefault(); $(".filters input:not([type=hidden])")?.focus(); break;
    case "?": $("#keys").showModal(); break;
    case "g": going = true; break;
    case "n": $("[rel=next]")?.click(); break;
    case "j": case "k":
      if (!rows.length) return;
      rows[at]?.classList.remove("at");
      at = Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)));
      rows[at].classList.add("at");
      rows[at].scrollIntoView({ block: "nearest" });
      break;
    case "Enter": if (event.target === document.body || event.target.id === "main") $("a", rows[at])?.click(); break;
  }
});
