// Building the page. Texts always go in as text, never as markup.

/** An element: h("p", {class: "muted"}, "text", child). Attributes that start with "on" are listeners. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
const empty = (text) => h("p", { class: "empty" }, text);
const controls = (...children) => h("div", { class: "controls" }, ...children);
const figure = (name, value) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, name));

function select(label, choices, onchange, value) {
  const box = h(
    "select",
    { onchange: () => onchange(box.value) },
    choices.map(([key, text]) => h("option", { value: key }, text)),
  );
  if (value !== undefined) box.value = value;
  return h("label", {}, label, box);
}

function check(label, value, onchange) {
  const box = h("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  box.checked = value;
  return h("label", {}, box, label);
}

/** Buttons of which one is pressed. */
function choice(label, choices, value, onchange) {
  const buttons = choices.map(([key, text]) =>
    h(
      "button",
      {
        type: "button",
        class: "button",
        "aria-pressed": String(key === value),
        "data-choice": key,
        onclick: () => {
          for (const other of buttons) other.setAttribute("aria-pressed", String(other.dataset.choice === key));
          onchange(key);
        },
      },
      text,
    ),
  );
  return h("fieldset", { role: "group", "aria-label": label }, h("span", { class: "muted" }, label), buttons);
}

const ipuChoices = (report, all) => [
  ...(all ? [["-1", all]] : []),
  ...report.document.memory.ipus.map((_, place) => [String(place), ipuName(report, place)]),
];

/** A plain table of few rows; numbers are columns to align at the right. */
function smallTable(columns, rows, numbers = new Set()) {
  const css = (i) => (numbers.has(i) ? { class: "number" } : {});
  return h(
    "table",
    { class: "pairs" },
    columns.length
      ? h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map((name, i) => h("th", { scope: "col", ...css(i) }, name)),
          ),
        )
      : null,
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          row.map((cell, i) => (i === 0 ? h("th", { scope: "row" }, cell) : h("td", css(i), cell))),
        ),
      ),
    ),
  );
}
