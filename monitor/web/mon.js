"use strict";
// The live picture: /picture is asked for once an interval and drawn anew; nothing that the cluster says is ever read as HTML.

const HOME = "home";
const MARKS = { failed: "x", executed: "*", born: "├", ended: "┤", lost: "X" };
const MANY = 20; // nodes from which on their names stand upright
const VIEWS = {
  l: { value: node => node.load, top: nodes => Math.max(1, ...nodes.map(node => node.load)), written: value => value.toFixed(2) },
  L: { value: node => Math.log1p(node.load), top: nodes => Math.log1p(Math.max(1, ...nodes.map(node => node.load))),
       written: value => Math.expm1(value).toFixed(2) },
  s: { value: node => node.speed, top: nodes => Math.max(1, ...nodes.map(node => node.speed)), written: value => value.toFixed(2) },
  m: { value: node => node.memory_used, top: nodes => Math.max(1, ...nodes.map(node => node.memory_total)), written: size },
  u: { value: node => node.utilisability, top: () => 1, written: value => Math.round(value * 100) + " %" },
};
const state = { view: "l", dead: false, totals: false, wanted: "", node: null, pid: null, picture: null, listing: null, untold: "", session: null, why: "" };

const byId = id => document.getElementById(id);

function made(tag, classes, text) {
  const element = document.createElement(tag);
  element.className = classes;
  if (text !== undefined) element.textContent = text;
  return element;
}

function size(bytes) {
  const units = ["", "K", "M", "G", "T"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return (bytes < 10 && unit ? bytes.toFixed(1) : Math.round(bytes)) + units[unit];
}

function age(seconds) {
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 600) return Math.round(seconds) + " s";
  return seconds < 36000 ? Math.round(seconds / 60) + " min" : Math.round(seconds / 3600) + " h";
}

function has(text) {
  return text.toLowerCase().includes(state.wanted.toLowerCase());
}

function shownNodes() {
  return state.picture.nodes.filter(node => (state.dead || node.shown) && (has(node.name) || !nodesMatch()));
}

function nodesMatch() {
  return state.picture.nodes.some(node => has(node.name));
}

function chosenNode() {
  const nodes = state.picture.nodes;
  return nodes.find(node => node.name === state.node) || nodes.find(node => node.self) || nodes[0];
}

function drawSummary() {
  const fresh = state.picture.nodes.filter(node => node.fade < 2 && !node.dead);
  const power = fresh.reduce((sum, node) => sum + node.cores * node.speed, 0);
  const load = power ? fresh.reduce((sum, node) => sum + node.runnable, 0) / power : 0;
  const living = state.picture.nodes.filter(node => !node.dead).length;
  const guests = fresh.reduce((sum, node) => sum + node.guests, 0);
  byId("summary").textContent = `farhome as ${state.picture.node} sees it: ${living} nodes, load ${load.toFixed(2)}, ${guests} guests`;
  const used = fresh.reduce((sum, node) => sum + node.memory_used, 0);
  const total = fresh.reduce((sum, node) => sum + node.memory_total, 0);
  byId("totals").hidden = !state.totals;
  byId("totals").textContent = `${fresh.length} of ${state.picture.nodes.length} nodes heard of, `
    + `${fresh.reduce((sum, node) => sum + node.cores, 0)} cores, power ${power.toFixed(1)}, memory ${size(used)}/${size(total)}`;
  for (const button of byId("views").querySelectorAll("button")) {
    const key = button.dataset.key;
    button.setAttribute("aria-pressed", String(key === state.view || (key === "d" && state.dead) || (key === "t" && state.totals)));
  }
}

// Elements stay as long as their keys do: what is pressed at this moment must not be replaced by another that looks like it.
function kept(parent, keys, make) {
  const now = [...parent.children];
  if (now.length !== keys.length || now.some((element, index) => element.dataset.key !== String(keys[index]))) {
    parent.replaceChildren(...keys.map(key => {
      const element = make(key);
      element.dataset.key = key;
      return element;
    }));
  }
  return [...parent.children];
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function newBar(name) {
  const element = made("button", "node"), well = made("div", "well");
  well.append(made("div", "free"), made("div", "bar"));
  element.append(made("div", "value"), well, made("div", "name", name));
  element.addEventListener("click", () => { state.node = name; draw(); look(); });
  return element;
}

function drawChart() {
  const view = VIEWS[state.view], nodes = shownNodes(), top = view.top(nodes), chosen = chosenNode();
  byId("chart").classList.toggle("many", nodes.length > MANY);
  kept(byId("chart"), nodes.map(node => node.name), newBar).forEach((element, index) => {
    const node = nodes[index], value = node.dead ? null : view.value(node);
    const level = node.load < 1.05 ? "low" : node.load < 2.05 ? "middle" : "high";
    const [text, well] = element.children, [free, bar] = well.children;
    element.className = `node fade${node.dead ? 2 : node.fade}`;
    element.title = `${node.name}: ${node.dead ? node.dead_since : node.state}`;
    element.classList.toggle("self", node.self);
    element.classList.toggle("chosen", chosen !== undefined && node.name === chosen.name);
    free.hidden = state.view !== "m" || node.dead;
    free.style.height = `${100 * node.memory_total / top}%`;
    bar.className = `bar ${state.view === "m" ? "memory" : "lL".includes(state.view) ? level : "low"}`;
    bar.style.height = `${value === null ? 0 : 100 * Math.min(1, value / top)}%`;
    set(text, value === null ? (node.dead ? "dead" : "?") : view.written(value));
  });
  set(byId("about"), chosen ? about(chosen) : "");
}

function about(node) {
  if (node.dead) return `${node.name}: ${node.dead_since}, nothing is known of it any more`;
  const said = [`${node.name}: ${node.state}`, `load ${node.load.toFixed(2)}`, `${node.cores} cores of speed ${node.speed.toFixed(2)}`,
    `memory ${size(node.memory_used)}/${size(node.memory_total)}`, `${node.guests} guests`, `known for ${age(node.age)}`];
  if (node.utilisability !== null) said.push(`utilisability ${Math.round(node.utilisability * 100)} %`);
  if (node.owner_state) said.push(`owner: ${node.owner_state}`);
  if (node.owner_idle !== null) said.push(`owner idle ${age(node.owner_idle)}`);
  if (node.closed_why) said.push(`lends nothing: ${node.closed_why}`);
  return said.join(", ");
}

function drawProcesses() {
  const picture = state.picture, node = chosenNode(), own = node && node.name === picture.node;
  const ours = picture.processes.filter(one => node && (own || one.where === node.name));
  const listing = !own && node && state.listing && state.listing.node === node.name ? state.listing : null;
  const there = listing ? listing.processes : [];
  const guests = own ? picture.guests : (listing ? listing.guests : [])
    .filter(one => one.home !== picture.node || !ours.some(process => process.pid === one.pid));
  let rows = [
    ...ours.map(one => ({ key: one.pid, cells: processCells(one) })),
    ...there.map(one => ({ key: `process of ${one.home}, ${one.pid}`, cells: processCells(one) })),
    ...guests.map(one => ({
      key: `guest of ${one.home}, ${one.pid}`,
      cells: [one.pid, one.user, "here", "guest", age(one.seconds), "", `${one.home}: ${one.command}`],
    })),
  ];
  if (state.wanted && !nodesMatch()) rows = rows.filter(row => has(row.cells.join(" ")));
  byId("whose").textContent = own || listing ? `processes of ${node.name}, and guests`
    : `processes of ${picture.node} on ${node ? node.name : "?"}${state.untold ? ` (${state.untold})` : ""}`;
  kept(byId("processes"), rows.map(row => row.key), newRow).forEach((line, index) => {
    line.classList.toggle("chosen", rows[index].key === state.pid);
    [...line.children].forEach((cell, column) => set(cell, String(rows[index].cells[column])));
  });
}

function processCells(one) {
  return [one.pid, one.user, one.where, one.share === null ? one.state : `${one.state} ${Math.round(100 * one.share)} %`,
    age(one.seconds), one.moves, one.command];
}

function newRow(key) {
  const line = made("tr", "");
  line.append(...Array.from({ length: 7 }, () => made("td", "")));
  if (typeof key === "number") line.addEventListener("click", () => choose(key));
  return line;
}

function drawChosen() {
  const process = state.picture.processes.find(one => one.pid === state.pid);
  byId("chosen").hidden = state.pid === null;
  if (state.pid === null) return;
  byId("chosen-name").textContent = `process ${state.pid}`;
  const now = !process ? ["it has ended"] : [process.home_only && "it was started to stay at home", process.locked && "it is not moved automatically",
    process.decision && `decision: ${process.decision}`, process.why && `why: ${process.why}`].filter(Boolean);
  byId("why").textContent = [...now, "", state.why].join("\n");
  byId("move").hidden = !state.session.moves || !process;
  if (!process) return;
  const targets = [...(process.where === HOME ? [] : [[HOME, "home"]]), ["balance", "where the balancer thinks best"],
    ...state.picture.nodes.filter(node => !node.dead && !node.self && node.name !== process.where)
      .map(node => [node.name, `${node.name} (load ${node.load.toFixed(2)}, ${node.state})`])];
  const select = byId("target"), before = select.value;
  if ([...select.options].map(option => option.value + option.text).join() === targets.map(target => target.join("")).join()) return;
  select.replaceChildren(...targets.map(([value, text]) => { const option = made("option", "", text); option.value = value; return option; }));
  if (targets.some(([value]) => value === before)) select.value = before;
}

function drawTimeline() {
  const picture = state.picture, ages = picture.events.filter(event => event.what === "moved").map(event => picture.at - event.at).sort((a, b) => a - b);
  const middle = ages.length ? ages[Math.floor(ages.length / 2)] : 0;
  const span = [60, 300, 900, 3600, 14400].find(one => middle <= one * 0.8) || 14400, begin = picture.at - span;
  byId("span").textContent = `moves of ${picture.node}'s processes, the last ${span < 120 ? span + " seconds" : Math.round(span / 60) + " minutes"}`;
  const lanes = new Map();
  for (const event of picture.events) lanes.set(event.pid, [...(lanes.get(event.pid) || []), event]);
  const recent = [...lanes.values()].filter(events => events[events.length - 1].at >= begin)
    .sort((a, b) => isLost(b) - isLost(a) || b[b.length - 1].at - a[a.length - 1].at).slice(0, 12);
  byId("timeline").replaceChildren(...recent.map(events => lane(events, begin, span)));
  byId("events").replaceChildren(...picture.events.slice(-30).reverse().map(event =>
    made("li", event.what, `${new Date(event.at * 1000).toLocaleTimeString()}  ${event.told}`)));
}

function isLost(events) {
  return Number(events[events.length - 1].what === "lost");
}

// Where a process was and when is concluded by the server (monitor/drawings/timeline.py); "" is where there is none, "?" where nobody knows.
function lane(events, begin, span) {
  const process = state.picture.processes.find(one => one.pid === events[0].pid), lost = isLost(events);
  const element = made("div", lost ? "lane lost" : "lane"), track = made("div", "track");
  element.append(made("div", "label", `${events[0].pid} ${process ? process.command : lost ? "(lost)" : "(ended)"}`), track);
  const percent = at => Math.max(0, Math.min(100, 100 * (at - begin) / span));
  const stays = state.picture.stays[events[0].pid];
  stays.forEach(([at, where], index) => {
    const end = index + 1 < stays.length ? stays[index + 1][0] : state.picture.at;
    if (where === "" || end <= begin || end <= at) return;
    const stay = made("div", where === HOME ? "home" : where === "?" ? "stay unheard" : "stay", where === HOME ? "" : where);
    stay.style.left = `${percent(at)}%`;
    stay.style.width = `${percent(end) - percent(at)}%`;
    track.append(stay);
  });
  for (const event of events.filter(one => one.what in MARKS && one.at >= begin)) {
    const mark = made("div", `mark ${event.what}`, MARKS[event.what]);
    mark.style.left = `${percent(event.at)}%`;
    mark.title = event.told;
    track.append(mark);
  }
  return element;
}

function drawLosses() {
  const lost = state.picture.lost;
  byId("lost").hidden = !lost.length;
  set(byId("lost"), lost.length > 1 ? `${lost.length} PROCESSES ARE LOST. The last: ${lost[0]}` : lost[0] || "");
}

function draw() {
  if (!state.picture) return;
  drawLosses();
  drawSummary();
  drawChart();
  drawProcesses();
  drawChosen();
  drawTimeline();
}

async function asked(path, options) {
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

async function choose(pid) {
  state.pid = pid;
  state.why = "";
  byId("told").textContent = "";
  draw();
  await askWhy();
}

async function askWhy() {
  const pid = state.pid;
  let text;
  try {
    text = (await asked(`/why?pid=${pid}`)).lines.join("\n");
  } catch (error) {
    text = error.message;
  }
  if (pid === state.pid) { state.why = text; draw(); }
}

async function move(event) {
  event.preventDefault();
  const told = byId("told"), target = byId("target").value, pid = state.pid;
  told.textContent = `process ${pid} is to go: ${target} …`;
  try {
    const headers = { "Content-Type": "application/json", "X-Farhome-Token": state.session.token };
    told.textContent = (await asked("/move", { method: "POST", headers, body: JSON.stringify({ pid, target }) })).told;
  } catch (error) {
    told.textContent = error.message;
  }
  await look();
  await askWhy();
}

async function look() {
  try {
    if (!state.session) state.session = await asked("/session");
    state.picture = await asked("/picture");
    await askListing();
    byId("trouble").textContent = "";
  } catch (error) {
    state.session = null;
    byId("trouble").textContent = `${error.message} (what is shown is old)`;
  }
  if (state.session) draw();
}

async function askListing() {
  const node = chosenNode();
  let listing = null, untold = "";
  if (node && !node.self && !node.dead) {
    try {
      listing = await asked(`/processes?node=${encodeURIComponent(node.name)}`);
    } catch (error) {
      untold = error.message;
    }
  }
  Object.assign(state, { listing, untold });
}

async function live() {
  if (!document.hidden) await look();
  setTimeout(live, 1000 * (state.session ? state.session.interval : 1));
}

function press(key) {
  if (key in VIEWS) state.view = key;
  else if (key === "d") state.dead = !state.dead;
  else if (key === "t") state.totals = !state.totals;
  else return false;
  draw();
  return true;
}

byId("views").addEventListener("click", event => press(event.target.dataset.key));
byId("filter").addEventListener("input", event => { state.wanted = event.target.value; draw(); });
byId("move").addEventListener("submit", move);
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
  if (event.key === "Escape") { state.pid = null; byId("filter").value = state.wanted = ""; event.target.blur(); draw(); }
  else if (!typing && event.key === "/") { event.preventDefault(); byId("filter").focus(); }
  else if (!typing) press(event.key);
});
live();
