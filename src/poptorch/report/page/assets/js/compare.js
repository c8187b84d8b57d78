// Comparison: two reports side by side, with the differences from the first to the second.

const UNITS = {
  cycles: format.cycles,
  seconds: format.seconds,
  number: format.number,
  share: format.share,
  bytes: format.bytes,
};
const MORE_IS_BETTER = new Set(["Samples per second"]);
const NO_VERDICT = new Set(["IPUs", "Operations", "Compute sets", "Vertices"]);

const changeText = (one, other) => {
  if (one === other) return "=";
  if (!one) return "new";
  const change = (100 * (other - one)) / Math.abs(one);
  return `${change > 0 ? "+" : "−"}${Math.abs(change) < 10 ? Math.abs(change).toFixed(1) : plain.format(Math.abs(change))} %`;
};
const signed = (shown) => (value) => (value === 0 ? "=" : `${value > 0 ? "+" : "−"}${shown(Math.abs(value))}`);

function compareTab(reports, comparison, panel) {
  const names = reports.map(({ name }) => name);
  const { categories } = comparison.tables;
  const memory = chart("Memory by category, both reports");
  const cycles = chart("Cycles by what they are spent on, both reports");
  panel.append(
    card(
      "Totals",
      smallTable(["", ...names, "Difference", "Change"], comparison.totals.map(totalRow), new Set([1, 2, 3, 4])),
    ),
    h("div", { class: "columns" }, card("Memory by category", memory), card("Where the cycles go", cycles)),
    card(
      "Memory by category",
      smallTable(
        ["Category", ...names, "Difference", "Change"],
        Array.from(range(categories.rows), (row) => {
          const one = categories.at("one", row),
            other = categories.at("other", row);
          return [
            categories.at("category", row),
            format.bytes(one),
            format.bytes(other),
            signed(format.bytes)(other - one),
            changeText(one, other),
          ];
        }),
        new Set([1, 2, 3, 4]),
      ),
    ),
    card(
      "Modules",
      ...differenceGrid(comparison.tables.layers, "Modules", names, [
        {
          key: "layer",
          title: "Module",
          width: "minmax(16rem, 2fr)",
          value: (row) => moduleName(comparison.tables.layers.at("layer", row)) || "(no module)",
        },
      ]),
    ),
    operationDifferences(comparison, names),
  );
  const grouped = (labels, values, shown) =>
    reports.map((_, i) => ({
      type: "bar",
      name: escaped(names[i]),
      x: labels.map(escaped),
      y: values[i],
      marker: { color: PALETTE[i] },
      hovertext: values[i].map((value, j) => `${escaped(names[i])}<br>${escaped(labels[j])}: ${shown(value)}`),
      hoverinfo: "text",
    }));
  const labels = Array.from(range(categories.rows), (row) => categories.at("category", row));
  const sizes = ["one", "other"].map((side) => [...categories.numbers(side)]);
  const [unit, unitName] = unitOf(Math.max(...sizes.flat()));
  const inUnits = sizes.map((side) => side.map((size) => size / unit));
  const keys = Object.keys(RESOURCES).filter((key) =>
    reports.some(({ document: it }) => it.estimate.cyclesByResource[key] > 0),
  );
  const spent = reports.map(({ document: it }) => keys.map((key) => it.estimate.cyclesByResource[key] ?? 0));
  return charts
    .draw(
      memory,
      grouped(labels, inUnits, (value) => format.bytes(value * unit)),
      { barmode: "group", yaxis: { title: { text: unitName } }, xaxis: { tickangle: -35 } },
    )
    .then(() =>
      charts.draw(
        cycles,
        grouped(
          keys.map((key) => RESOURCES[key]),
          spent,
          format.cycles,
        ),
        { barmode: "group", yaxis: { title: { text: "cycles of a call" }, exponentformat: "SI" }, xaxis: {} },
      ),
    );
}

function totalRow({ name, unit, one, other }) {
  const shown = UNITS[unit],
    value = (it) => (it === null ? "–" : shown(it));
  if (one === null || other === null) return [name, value(one), value(other), "", ""];
  const good = MORE_IS_BETTER.has(name) ? other > one : other < one;
  const css = one === other || NO_VERDICT.has(name) ? "" : good ? "better" : "worse";
  return [
    name,
    value(one),
    value(other),
    signed(shown)(other - one),
    h("span", { class: css }, changeText(one, other)),
  ];
}

function differenceGrid(table, label, names, first, filter = null) {
  const both = (measure, title, shown) =>
    table.has(`${measure}_one`)
      ? [
          numeric(table, `${measure}_one`, `${title}, ${shortened(names[0], 14)}`, shown, { width: "10rem" }),
          numeric(table, `${measure}_other`, `${title}, ${shortened(names[1], 14)}`, shown, { width: "10rem" }),
          {
            key: `${measure}_change`,
            title: `Δ ${title}`,
            numeric: true,
            width: "8rem",
            format: signed(shown),
            value: (row) => table.at(`${measure}_other`, row) - table.at(`${measure}_one`, row),
          },
        ]
      : [];
  const columns = [
    ...first,
    ...both("cycles", "Cycles", format.cycles),
    ...both("flops", "FLOPs", format.flops),
    ...both("bytes", "Bytes", format.bytes),
  ];
  const grid = new Grid(columns, { label, sort: [table.has("cycles_one") ? "cycles_change" : "bytes_change", true] });
  const show = (state) =>
    grid.set(range(table.rows).filter((row) => state === "all" || table.at("state", row) === state));
  show("all");
  return grid.parts(...(filter ? [filter(show)] : []));
}

function operationDifferences(comparison, names) {
  const { operations } = comparison.tables;
  const counts = { all: operations.rows };
  for (let row = 0; row < operations.rows; row++)
    counts[operations.at("state", row)] = (counts[operations.at("state", row)] ?? 0) + 1;
  const states = ["all", "changed", "added", "removed", "same"].map((state) => [
    state,
    `${state[0].toUpperCase()}${state.slice(1)} (${plain.format(counts[state] ?? 0)})`,
  ]);
  return card(
    "Operations",
    h(
      "p",
      { class: "muted" },
      "Operations with the same operator, module and pass belong together, those with the same work first. Cycles are those of one run.",
    ),
    ...differenceGrid(
      operations,
      "Operations of both reports",
      names,
      [
        column(operations, "state", "State", { width: "6.5rem" }),
        column(operations, "name", "Operation", { width: "minmax(12rem, 2fr)" }),
        column(operations, "operator", "Operator", { width: "minmax(11rem, 1fr)" }),
        {
          key: "layer",
          title: "Module",
          width: "minmax(9rem, 1fr)",
          value: (row) => moduleName(operations.at("layer", row)),
        },
      ],
      (show) => choice("Show", states, "all", show),
    ),
  );
}
