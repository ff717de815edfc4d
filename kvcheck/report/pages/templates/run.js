"use strict";
// Steps through a run. The film says, for each action, what it changed; states are what it came to. All text goes into
// the page as text, never as markup.

const film = JSON.parse(document.getElementById("film").textContent);
const frames = film.frames;
const find = (id) => document.getElementById(id);
const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

// ---- states: what the bookkeeping was after each action -------------------------------------------------------------

const MAPS = ["tables", "requests", "refs", "keys", "content", "outside"];
const LISTS = ["free", "running", "waiting"];
const NOTHING = { tables: {}, requests: {}, refs: {}, keys: {}, content: {}, outside: {}, free: [], running: [], waiting: [] };

function merged(before, changes) {
  const now = { ...before, ...changes };
  for (const [key, value] of Object.entries(changes)) if (value === null) delete now[key];
  return now;
}

function after(state, frame) {
  const next = { ...state };
  for (const name of MAPS) if (frame[name]) next[name] = merged(state[name], frame[name]);
  for (const name of LISTS) if (frame[name]) next[name] = frame[name];
  return next;
}

let last = NOTHING;
const states = frames.map((frame) => (last = after(last, frame)));

/** By block: the places in tables that hold it. */
function holdersOf(state) {
  const holders = {};
  for (const [label, tables] of Object.entries(state.tables)) {
    tables.forEach((table, group) => table.forEach((block, column) => {
      if (block) (holders[block] ||= []).push({ label, group, column });
    }));
  }
  return holders;
}

// ---- colours: what each block was after each action, as a number into a palette --------------------------------------

const FREE = 0, CACHED = 1, SHARED = 2, OUTSIDE = 3, FIRST_LABEL = 4; // by request
const PRIVATE = 2, REGISTERED = 3, BY_SEVERAL = 4, BY_NOBODY = 5; // by state; 0 and 1 are as above
const FIRST_OWNER = 5; // by content: owners below 0 come first

const used = new Set();
for (const frame of frames) {
  for (const name of ["refs", "keys", "content"]) for (const block of Object.keys(frame[name] || {})) used.add(Number(block));
}
used.delete(0); // the null block
const rows = [...used].sort((a, b) => a - b);
const numbers = Object.fromEntries(film.labels.map((label, number) => [label, number]));

const cells = { request: [], content: [], state: [] };
states.forEach((state, step) => {
  const holders = holdersOf(state);
  const column = { request: new Uint16Array(rows.length), content: new Uint16Array(rows.length), state: new Uint8Array(rows.length) };
  rows.forEach((block, row) => {
    const labels = new Set((holders[block] || []).map((holder) => holder.label));
    const keyed = Boolean(state.keys[block]);
    if (!state.refs[block]) {
      column.request[row] = column.state[row] = keyed ? CACHED : FREE;
    } else {
      column.state[row] = labels.size > 1 ? BY_SEVERAL : labels.size === 0 ? BY_NOBODY : keyed ? REGISTERED : PRIVATE;
      column.request[row] = labels.size > 1 ? SHARED : labels.size === 0 ? OUTSIDE : FIRST_LABEL + numbers[[...labels][0]];
    }
    const content = film.contents[state.content[block]];
    column.content[row] = FIRST_OWNER + (content ? content[0] : -1);
  });
  for (const mode of Object.keys(cells)) cells[mode][step] = column[mode];
});

let theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ground", "text", "quiet", "line", "accent", "wrong", "free", "cached", "private", "registered", "shared",
    "outside", "void", "draft", "garbage"];
  theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  theme.owners = style.getPropertyValue("--owners").trim().split(/\s+/);
}

/** Requests that follow each other get colours that differ; after the last one they begin again. */
const colourOf = (number) => theme.owners[number % theme.owners.length];
const ofLabel = (label) => colourOf(numbers[label] ?? 0);

function colour(mode, code) {
  if (mode === "state") {
    return [theme.free, theme.cached, theme.private, theme.registered, theme.shared, theme.outside][code];
  }
  if (mode === "request") {
    return code < FIRST_LABEL ? [theme.free, theme.cached, theme.text, theme.quiet][code] : colourOf(code - FIRST_LABEL);
  }
  return code < FIRST_OWNER ? [theme.line, theme.garbage, theme.draft, theme.void, theme.free][code] : colourOf(code - FIRST_OWNER);
}

function legend(mode) {
  const visible = cells[mode].slice(firstColumn, firstColumn + columnCount());
  const present = [...new Set(visible.flatMap((column) => [...column]))].sort((a, b) => a - b);
  const words = {
    state: ["free", "free, still has a key", "private: held by one, no key", "registered: held by one, has a key",
      "shared: held by several", "held, but in no table"],
    request: ["free", "free, still has a key", "held by several", "held, but in no table"],
    content: ["nobody knows", "left by a failed load", "of a rejected draft", "not written since handed out", "never written"],
  }[mode];
  const name = (code) => words[code] ?? film.labels[code - words.length];
  return present.map((code) => [colour(mode, code), mode === "content" && code >= FIRST_OWNER ? `tokens of ${name(code)}` : name(code)]);
}

// ---- the two pictures ------------------------------------------------------------------------------------------------

const GUTTER = 40, HEAD = 18;
const map = find("map"), overview = find("overview");
let now = 0, mode = "request", chosen = null, firstColumn = 0;

/** Short runs and small pools get large cells. */
const within = (low, size, high) => Math.max(low, Math.min(high, Math.floor(size)));
const rowHeight = () => within(4, 640 / rows.length, 24);
const columnWidth = () => within(14, (map.clientWidth - GUTTER) / frames.length, 40);
const columnCount = () => Math.max(1, Math.floor((map.clientWidth - GUTTER) / columnWidth()));
const isBroken = (step) => Boolean(frames[step].broken);

/** A canvas as sharp as the screen, with `width` and `height` in the page's pixels. */
function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

function drawMap() {
  const height = rowHeight(), width = columnWidth(), count = columnCount();
  firstColumn = Math.max(0, Math.min(now - Math.floor(count / 2), frames.length - count));
  const context = surface(map, HEAD + rows.length * height + 2);
  context.font = "11px ui-monospace, monospace";
  context.textBaseline = "middle";
  drawNames(context, height);
  for (let step = firstColumn; step < Math.min(frames.length, firstColumn + count); step++) {
    drawColumn(context, step, GUTTER + (step - firstColumn) * width, width, height);
  }
}

function drawNames(context, height) {
  const every = height >= 11 ? 1 : 10;
  context.textAlign = "right";
  rows.forEach((block, row) => {
    if (block !== chosen && row % every) return;
    context.fillStyle = block === chosen ? theme.accent : theme.quiet;
    context.fillText(String(block), GUTTER - 4, HEAD + row * height + height / 2);
  });
}

function drawColumn(context, step, x, width, height) {
  const gap = height > 6 ? 1 : 0;
  context.textAlign = "left";
  if (step % 5 === 0 || width >= 28) {
    context.fillStyle = theme.quiet;
    context.fillText(String(step), x, HEAD / 2 - 1);
  }
  if (isBroken(step)) {
    context.fillStyle = theme.wrong;
    context.fillRect(x, HEAD - 5, width - 1, 4);
  }
  const wrong = new Set((frames[step].wrong || []).map((read) => read.block));
  rows.forEach((block, row) => {
    const y = HEAD + row * height;
    context.globalAlpha = mode === "content" && cells.state[step][row] <= CACHED ? 0.35 : 1;
    context.fillStyle = colour(mode, cells[mode][step][row]);
    context.fillRect(x, y, width - 1, height - gap);
    context.globalAlpha = 1;
    if (isMarked(step, row)) {
      context.globalAlpha = 0.5;
      context.fillStyle = theme.text;
      context.fillRect(x, y, 2, height - gap);
      context.globalAlpha = 1;
    }
    if (wrong.has(block)) crossedOut(context, theme.wrong, x, y, width - 1, height - gap);
    if (block === chosen && step === now) outline(context, theme.accent, x, y, width - 1, height - gap);
  });
  if (step === now) outline(context, theme.text, x - 1, HEAD - 1, width + 1, rows.length * height + 2);
}

/** Whether a cell is marked for having a key: where its colour does not tell. */
function isMarked(step, row) {
  const shown = mode === "content" || (mode === "request" && cells.state[step][row] > CACHED);
  return shown && Boolean(states[step].keys[rows[row]]);
}

function outline(context, style, x, y, width, height) {
  context.strokeStyle = style;
  context.lineWidth = 2;
  context.strokeRect(x, y, width, height);
}

/** A form that means the same where a colour says nothing. */
function crossedOut(context, style, x, y, width, height) {
  outline(context, style, x, y, width, height);
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + width, y + height);
  context.moveTo(x + width, y);
  context.lineTo(x, y + height);
  context.stroke();
}

/** The whole run; runs of equal cells are drawn at once. */
function drawOverview() {
  const fits = frames.length <= columnCount();
  overview.hidden = fits;
  if (fits) return;
  const height = 80, context = surface(overview, height);
  const wide = overview.clientWidth / frames.length, high = (height - 6) / rows.length;
  rows.forEach((_, row) => {
    for (let step = 0, begin = 0; step < frames.length; step++) {
      if (step + 1 < frames.length && cells[mode][step + 1][row] === cells[mode][begin][row]) continue;
      context.fillStyle = colour(mode, cells[mode][begin][row]);
      context.fillRect(begin * wide, row * high, (step + 1 - begin) * wide + 0.5, high + 0.5);
      begin = step + 1;
    }
  });
  context.fillStyle = theme.wrong;
  frames.forEach((frame, step) => frame.broken && context.fillRect(step * wide - 1, height - 6, Math.max(3, wide), 6));
  context.strokeStyle = theme.text;
  context.strokeRect(firstColumn * wide, 0.5, Math.min(frames.length, columnCount()) * wide, height - 7);
  context.fillStyle = theme.accent;
  context.fillRect(now * wide - 1, 0, 3, height);
}

// ---- text ------------------------------------------------------------------------------------------------------------

function element(name, text = "", kind = "", ...children) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

function swatch(style) {
  const made = element("span", "", "swatch");
  made.style.background = style;
  return made;
}

function showStep() {
  const frame = frames[now];
  find("action").textContent = `${now}: ${frame.action}`;
  const unseen = frame.ran === false ? "not seen: the recording does not reach this action" : "";
  const dead = frame.dead ? "; the server died, what is shown is from before" : "";
  find("outcome").textContent = unseen || (frame.outcome || "") + dead;
  find("breaks").replaceChildren(...(frame.broken || []).map((one) => element("div", "", "card broken",
    element("b", one.signature, "wrong"), element("p", one.message), element("p", `claim: ${one.claim}`, "quiet"),
    element("p", `severity: ${one.severity}`, "quiet"))));
  find("lines").replaceChildren(...(frame.lines || ["nothing else"]).map((line) => element("li", line)));
  const wrong = frame.wrong || [];
  find("reads").hidden = !wrong.length;
  find("excused").hidden = Boolean(frame.broken);
  find("wrong").replaceChildren(...wrong.map((read) => element("tr", "", "",
    element("td", read.label),
    element("td", `${read.what}, position ${read.position} in group ${read.group}: column ${read.column}, block ${read.block}`),
    element("td", read.found, "wrong"), element("td", read.expected))));
}

function chip(block, state, before, wrong) {
  const made = element("button", String(block), "chip");
  made.type = "button";
  const content = film.contents[state.content[block]];
  made.title = content ? content[1] : "never written";
  if (content && content[0] >= 0) made.style.setProperty("--owner", colourOf(content[0]));
  made.classList.toggle("keyed", Boolean(state.keys[block]));
  made.classList.toggle("new", !before.includes(block));
  made.classList.toggle("bad", wrong.has(block));
  made.classList.toggle("chosen", block === chosen);
  made.addEventListener("click", () => choose(block));
  return made;
}

/** The chips of a table; columns that hold nothing are told together. */
function chipsOf(table, state, before, wrong) {
  const chips = [];
  for (let column = 0; column < table.length; column++) {
    if (table[column]) {
      chips.push(chip(table[column], state, before, wrong));
      continue;
    }
    const begin = column;
    while (table[column + 1] === 0) column++;
    chips.push(element("span", column > begin ? `\u2013 \u00d7 ${column - begin + 1}` : "\u2013", "chip none"));
  }
  return chips;
}

function showTables() {
  const state = states[now], before = now ? states[now - 1] : NOTHING;
  const wrong = new Set((frames[now].wrong || []).map((read) => read.block));
  const parts = film.groups.flatMap((name, group) => {
    const lines = Object.entries(state.tables).map(([label, tables]) => {
      const old = before.tables[label]?.[group] || [];
      const chips = element("div", "", "chips", ...chipsOf(tables[group] || [], state, old, wrong));
      return element("tr", "", "", element("th", "", "", swatch(ofLabel(label)), label), element("td", "", "", chips));
    });
    const table = element("table", "", "tables", ...(lines.length ? lines : [element("tr", "", "", element("td", "no request has blocks", "quiet"))]));
    return [element("h3", `group ${group}: ${name}`), table];
  });
  const note = element("p", "Left edge: whose tokens the block holds. Underlined: has a key. Bold: new in this step. Red frame: what was read there is not what should have been. –: nothing.", "quiet");
  find("tables").replaceChildren(...parts, note);
}

function showQueues() {
  const state = states[now], requests = Object.entries(state.requests);
  const shown = [["running", state.running.join(" ") || "nobody"], ["waiting", state.waiting.join(" ") || "nobody"],
    ["free", `${counted(state.free.length, "block")}${state.free.length ? `, next ${state.free.slice(0, 24).join(" ")}` : ""}${state.free.length > 24 ? " ..." : ""}`]];
  const lines = requests.map(([label, [status, text]]) => [label, `${status}, ${text}`]);
  find("queues").replaceChildren(...[...shown, ...lines].flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
}

function showBlock() {
  find("block-title").textContent = chosen === null ? "Choose a block to see what it holds." : `Block ${chosen} after action ${now}`;
  if (chosen === null) return find("block").replaceChildren();
  const state = states[now], content = film.contents[state.content[chosen]];
  const place = state.free.indexOf(chosen);
  const lines = (holdersOf(state)[chosen] || []).map((one) => `held by ${one.label}: group ${one.group}, column ${one.column}`);
  if (state.outside[chosen]) lines.push(`references outside the tables: ${state.outside[chosen]}`);
  if (place >= 0) lines.push(`free, number ${place + 1} of ${state.free.length} to be handed out`);
  lines.push(`references: ${state.refs[chosen] || 0}`, `holds: ${content ? content[1] : "never written"}`);
  lines.push(...(state.keys[chosen] || []).map((key) => `key: ${key}`));
  find("block").replaceChildren(...lines.map((line) => element("li", line)));
}

function showLegend() {
  const items = legend(mode).map(([style, text]) => element("li", "", "", swatch(style), text));
  if (mode !== "state") items.push(element("li", "▏ has a key"));
  if (mode === "content") items.push(element("li", "pale: free"));
  if (frames.some((frame) => frame.wrong)) items.push(element("li", "\u00d7 read, and not what should have been there", "wrong"));
  find("legend").replaceChildren(...items);
}

function showActions() {
  find("actions").replaceChildren(...frames.map((frame, step) => {
    const kind = frame.broken ? "broken" : frame.ran === false ? "unseen" : frame.skipped ? "skipped" : "";
    const made = element("button", `${step}  ${frame.action}${frame.outcome ? `  → ${frame.outcome}` : ""}`, `code ${kind}`);
    made.type = "button";
    made.addEventListener("click", () => go(step));
    return element("li", "", "", made);
  }));
}

function markAction() {
  const list = find("actions");
  list.querySelector("[aria-current]")?.removeAttribute("aria-current");
  const button = list.children[now].firstChild;
  button.setAttribute("aria-current", "step");
  const top = button.offsetTop, bottom = top + button.offsetHeight;
  if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 3;
}

// ---- moving ----------------------------------------------------------------------------------------------------------

const firstBroken = frames.findIndex((frame) => frame.broken);
const nextBroken = () => frames.findIndex((frame, step) => step > now && frame.broken);

function show() {
  find("place").textContent = `${now} of ${frames.length - 1}`;
  find("slider").value = now;
  find("first").disabled = find("back").disabled = now === 0;
  find("next").disabled = find("last").disabled = now === frames.length - 1;
  find("next-broken").disabled = nextBroken() < 0;
  showStep();
  showTables();
  showQueues();
  showBlock();
  markAction();
  draw();
}

function draw() {
  readTheme();
  find("pool").hidden = !rows.length;
  if (!rows.length) return;
  drawMap();
  drawOverview();
  showLegend();
}

let linking = 0;

/** Show a step; the page's address says which, so that it can be sent to somebody. */
function go(step) {
  now = Math.max(0, Math.min(frames.length - 1, step));
  clearTimeout(linking);
  linking = setTimeout(() => history.replaceState(null, "", `#step=${now}`), 300); // browsers refuse it many times a second
  show();
}

function choose(block) {
  chosen = block;
  show();
}

function paint(next) {
  find("mode").value = mode = next;
  draw();
}

const MODES = Object.keys(cells);
const KEYS = {
  ArrowLeft: () => go(now - 1),
  ArrowRight: () => go(now + 1),
  Home: () => go(0),
  End: () => go(frames.length - 1),
  b: () => firstBroken >= 0 && go(firstBroken),
  n: () => nextBroken() >= 0 && go(nextBroken()),
  c: () => paint(MODES[(MODES.indexOf(mode) + 1) % MODES.length]),
};

document.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  event.preventDefault();
  act();
});
find("first").addEventListener("click", KEYS.Home);
find("back").addEventListener("click", KEYS.ArrowLeft);
find("next").addEventListener("click", KEYS.ArrowRight);
find("last").addEventListener("click", KEYS.End);
find("broken").addEventListener("click", KEYS.b);
find("next-broken").addEventListener("click", KEYS.n);
find("slider").addEventListener("input", (event) => go(Number(event.target.value)));
find("mode").addEventListener("change", (event) => paint(event.target.value));
overview.addEventListener("click", (event) => go(Math.floor((event.offsetX / overview.clientWidth) * frames.length)));
map.addEventListener("click", (event) => {
  const column = Math.floor((event.offsetX - GUTTER) / columnWidth()), row = Math.floor((event.offsetY - HEAD) / rowHeight());
  if (row >= 0 && row < rows.length) chosen = rows[row];
  go(column >= 0 ? firstColumn + column : now);
});
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

find("slider").max = frames.length - 1;
find("broken").disabled = firstBroken < 0;
const never = film.blocks - 1 - rows.length;
find("rows").textContent = never > 0 ? `Left out: ${counted(never, "block")} never used.` : "";
readTheme();
showActions();

/** The step that the address names; without one, the first broken step. */
function goWhereLinked() {
  const linked = /^#step=(\d+)$/.exec(location.hash);
  go(linked ? Number(linked[1]) : Math.max(0, firstBroken));
}
window.addEventListener("hashchange", goWhereLinked);
goWhereLinked();
