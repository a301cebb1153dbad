// Live refresh, keys, selection. Pages work without it.
const policy = window.trustedTypes
  ? trustedTypes.createPolicy("jobq", { createHTML: (text) => text })
  : { createHTML: (text) => text };
const main = () => document.getElementById("main");

// --- Live refresh: ask for the changing part of this page, and morph it into place.
let tag = "", timer = 0, failures = 0, since = "";

async function refresh() {
  clearTimeout(timer);
  const wanted = location.href;
  try {
    const reply = await fetch(wanted, { headers: { "X-Jobq-Live": "1", ...(tag ? { "If-None-Match": tag } : {}) }, redirect: "manual" });
    // The session has ended, so the reload leads to the login.
    if (reply.type === "opaqueredirect" || reply.status === 403) return location.reload();
    if (reply.status >= 500) throw new Error(String(reply.status));
    if (reply.status !== 304) {
      const text = await reply.text();
      if (wanted === location.href) apply(text);
      tag = reply.headers.get("ETag") || "";
    }
    answered(true);
  } catch {
    answered(false);
  }
  schedule();
}

// Without an answer, the page stays as it is, turns grey and disables its actions.
function answered(yes) {
  const note = document.getElementById("stale");
  failures = yes ? 0 : failures + 1;
  if (failures === 1) since = new Date().toLocaleTimeString();
  document.documentElement.toggleAttribute("data-stale", !yes);
  note.hidden = yes;
  const text = yes ? "" : `No answer since ${since}. The page shows figures from that time, and actions are disabled.`;
  if (note.textContent !== text) note.textContent = text;
}
document.addEventListener("submit", (event) => {
  if (failures > 0 && event.target.method === "post") event.preventDefault();
});

function apply(text) {
  const fresh = new DOMParser().parseFromString(policy.createHTML(text), "text/html");
  const part = fresh.getElementById("main");
  if (!part) return location.reload();
  document.title = fresh.title;
  const note = document.getElementById("note"), next = fresh.getElementById("note");
  if (note && next && note.innerHTML !== next.innerHTML) Idiomorph.morph(note, document.adoptNode(next));
  identify(main());
  identify(part);
  const held = document.activeElement, at = rows().findIndex((row) => row.contains(held));
  Idiomorph.morph(main(), document.adoptNode(part), {
    ignoreActiveValue: true,
    callbacks: {
      // Keep what a viewer has opened, ticked or typed.
      beforeAttributeUpdated: (name, node) =>
        !((name === "open" && node.tagName === "DETAILS") || (name === "checked" && node.tagName === "INPUT") || name === "data-at"),
    },
  });
  // If the focused row is gone, focus the row that is now in its place.
  if (held !== document.activeElement) {
    if (main().contains(held)) held.focus({ preventScroll: true });
    else if (at >= 0) mark(rows()[Math.min(at, rows().length - 1)]);
  }
  document.dispatchEvent(new CustomEvent("jobq:refreshed"));
}

// Identify each row by the message of its checkbox or by its link, so that a row that moves keeps its tick and the focus.
function identify(part) {
  const taken = new Set();
  for (const row of part.querySelectorAll("tbody > tr, ul.findings > li")) {
    const name = row.querySelector("input[type=checkbox]")?.value || row.querySelector("a[href]")?.getAttribute("href");
    if (!name) continue;
    const id = encodeURIComponent(`row ${row.closest("table")?.caption?.textContent || ""} ${name}`);
    if (taken.has(id)) row.removeAttribute("id");
    else row.id = id;
    taken.add(id);
  }
}

function schedule() {
  clearTimeout(timer);
  const seconds = Number(main()?.dataset.live || 0);
  if (seconds > 0 && !document.hidden) timer = setTimeout(refresh, Math.min(60, seconds * 2 ** Math.min(failures, 5)) * 1000);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : Number(main()?.dataset.live) > 0 && refresh()));

// --- The time zone of the browser, in which the server writes times.
const root = document.querySelector("script[type=module]").src.replace(/static\/[^/]*$/, "");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.includes(`jobq_zone=${encodeURIComponent(zone)}`)) {
  document.cookie = `jobq_zone=${encodeURIComponent(zone)}; path=${new URL(root).pathname}; max-age=31536000; samesite=strict`;
  if (Number(main()?.dataset.live) > 0) refresh();
}

// --- Keys. Each is also a link or a button, which names its key in data-key.
const typing = (node) => node.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
let first = "";

function rows() { return [...main().querySelectorAll("tbody > tr")].filter((row) => row.querySelector("a, input")); }
function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement) || row.hasAttribute("data-at"));
  mark(all[Math.max(0, Math.min(all.length - 1, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))]);
}
function mark(row) {
  for (const other of rows()) other.removeAttribute("data-at");
  if (!row) return;
  row.setAttribute("data-at", "");
  (row.querySelector("a") || row.querySelector("input")).focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const key = first ? `${first} ${event.key}` : event.key;
  first = "";
  if (key === "g") { first = "g"; setTimeout(() => (first = ""), 2000); return; }
  if (key === "j" || key === "k") { move(key === "j" ? 1 : -1); return; }
  if (key === "x") { document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(); return; }
  if (key === "r") { refresh(); return; }
  const control = [...document.querySelectorAll("[data-key]")].find((node) => node.dataset.key === key);
  if (!control) return;
  event.preventDefault();
  if (control.matches("input")) control.focus();
  else control.click();
});

// --- Selection: the box in the head of a table ticks all rows; [data-selected] counts them.
function selected() {
  for (const form of document.querySelectorAll("form[data-select]")) {
    const boxes = [...form.querySelectorAll("tbody input[type=checkbox]")];
    const ticked = boxes.filter((box) => box.checked);
    for (const box of boxes) box.closest("tr").toggleAttribute("data-ticked", box.checked);
    const all = form.querySelector("thead input[type=checkbox]");
    if (all) { all.checked = ticked.length > 0 && ticked.length === boxes.length; all.indeterminate = ticked.length > 0 && ticked.length < boxes.length; }
    for (const node of form.querySelectorAll("[data-selected]")) node.textContent = String(ticked.length);
    form.toggleAttribute("data-any", ticked.length > 0);
  }
}
document.addEventListener("change", (event) => {
  const box = event.target;
  const form = box.closest("form[data-select]");
  if (form && box.matches("thead input[type=checkbox]")) for (const rowBox of form.querySelectorAll("tbody input[type=checkbox]")) rowBox.checked = box.checked;
  if (form) selected();
  if (box.matches("select[data-submit]")) box.form.requestSubmit();
});
document.addEventListener("jobq:refreshed", selected);
selected();
schedule();
document.documentElement.dataset.ready = "";
