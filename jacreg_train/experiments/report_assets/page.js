// Draws the charts of a report, and hides and shows runs in all of them. Everything it shows is data; no HTML is built
// from it.
"use strict";

const data = JSON.parse(document.getElementById("report-data").textContent);
const root = document.documentElement;
const hidden = new Set(data.runs.filter((run) => !run.shown).map((run) => run.name));
const axes = new Map(data.runs.map((run) => [run.name, run.axes]));
const positions = new Map(data.runs.map((run) => [run.name, new Map(run.axes.step.map((step, i) => [step, i]))]));
const small = window.matchMedia("(max-width: 600px)");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const AXIS_TITLES = { step: "step", epoch: "epoch", seconds: "seconds since the start" };
let axis = "step";

function colors() {
  const style = getComputedStyle(root);
  return Object.fromEntries(["text", "line", "card", "quiet"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function themed(layout) {
  const color = colors();
  const themedLayout = { ...layout, font: { ...layout.font, color: color.text, family: getComputedStyle(document.body).fontFamily } };
  themedLayout.hoverlabel = { bgcolor: color.card, bordercolor: color.line, font: { color: color.text }, namelength: 40 };
  for (const name of ["xaxis", "yaxis"]) {
    themedLayout[name] = { ...layout[name], gridcolor: color.line, linecolor: color.line, tickcolor: color.line };
  }
  if (layout.annotations) {
    themedLayout.annotations = layout.annotations.map((each) => ({ ...each, bgcolor: color.card, opacity: 0.85 }));
  }
  themedLayout.modebar = { bgcolor: "rgba(0,0,0,0)", color: color.quiet, activecolor: color.text };
  if (small.matches) {
    themedLayout.dragmode = false; // a finger on a chart scrolls the page
  }
  return themedLayout;
}

function isVisible(trace) {
  return !(trace.meta && trace.meta.run && hidden.has(trace.meta.run));
}

function onAxis(chart, steps, run) {
  const column = axes.get(run)[axis];
  return steps.map((step) => column[positions.get(run).get(step)]);
}

function traces(chart) {
  return chart.figure.data.map((trace) => ({
    ...trace,
    visible: isVisible(trace),
    x: trace.meta && trace.meta.axis ? onAxis(chart, trace.x, trace.meta.run) : trace.x,
  }));
}

function layout(chart) {
  const base = themed(chart.figure.layout);
  if (chart.figure.data.some((trace) => trace.meta && trace.meta.axis)) {
    base.xaxis = { ...base.xaxis, title: { ...base.xaxis.title, text: AXIS_TITLES[axis] } };
  }
  return base;
}

function draw(chart) {
  return Plotly.react(document.getElementById(chart.id), traces(chart), layout(chart), {
    responsive: true,
    displaylogo: false,
    displayModeBar: !small.matches,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
}

async function drawAll() {
  for (const chart of data.charts) {
    await draw(chart);
  }
  root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
}

function setTheme(choice) {
  root.dataset.theme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
}

function show(name, visible) {
  visible ? hidden.delete(name) : hidden.add(name);
}

function connectRuns() {
  const boxes = [...document.querySelectorAll(".runs input")];
  const label = document.getElementById("runs-shown");
  const update = () => {
    boxes.forEach((box) => { box.checked = !hidden.has(box.value); });
    if (label) label.textContent = `${boxes.length - hidden.size} of ${boxes.length} runs shown`;
    return drawAll();
  };
  boxes.forEach((box) => box.addEventListener("change", () => { show(box.value, box.checked); update(); }));
  for (const [id, visible] of [["all-runs", true], ["no-runs", false]]) {
    const button = document.getElementById(id);
    if (button) button.addEventListener("click", () => { boxes.forEach((box) => show(box.value, visible)); update(); });
  }
  return update;
}

function connectTables() {
  for (const heading of document.querySelectorAll("th")) {
    heading.tabIndex = 0;
    const sort = () => {
      const body = heading.closest("table").tBodies[0];
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      const key = (row) => row.cells[heading.cellIndex].dataset.value ?? row.cells[heading.cellIndex].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if ((x === "") !== (y === "")) return x === "" ? 1 : -1; // what is missing comes last
        const numbers = x - y;
        return (ascending ? 1 : -1) * (Number.isNaN(numbers) ? x.localeCompare(y) : numbers);
      };
      heading.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      body.append(...[...body.rows].sort(order));
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  }
}

function connectControls() {
  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => { setTheme(theme.value); drawAll(); });
  dark.addEventListener("change", () => { setTheme(theme.value); drawAll(); });
  small.addEventListener("change", drawAll);
  const axisChoice = document.getElementById("axis");
  if (axisChoice) axisChoice.addEventListener("change", () => { axis = axisChoice.value; drawAll(); });
}

if (small.matches) document.querySelectorAll(".controls details").forEach((each) => { each.open = false; });
setTheme("auto");
connectControls();
connectTables();
connectRuns()();
