// Operations: cycles, floating-point operations and bytes, one by one or summed up.

const MEASURES = {
  total: ["Cycles of a call", format.cycles],
  flops: ["FLOPs", format.flops],
  bytes: ["Bytes", format.bytes],
};

const GROUPS = {
  operation: "Operation",
  layer: "Module",
  outer: "Outer module",
  operator: "Operator",
  stage: "Stage",
  source: "Source line",
};

/** For each operation, what it is summed up by. */
function groupOf(operations, by) {
  const none = (row) => (operations.at("stage", row) === "weight update" ? "(weight update)" : "(no module)");
  if (by === "layer") return (row) => moduleName(operations.at("layer", row)) || none(row);
  if (by === "outer") return (row) => operations.at("layer", row).split("/")[0] || none(row);
  const read = operations.reader(by, "left out");
  return (row) => read(row) || "(unknown)";
}

function groupedOperations(operations, by) {
  const key = groupOf(operations, by);
  const read = Object.fromEntries(
    ["cycles", "compute", "exchange", "sync", "flops", "bytes", "runs"].map((name) => [
      name,
      operations.reader(name, 0),
    ]),
  );
  const groups = new Map();
  for (let row = 0; row < operations.rows; row++) {
    const name = key(row);
    if (!groups.has(name))
      groups.set(name, { name, count: 0, cycles: 0, total: 0, compute: 0, exchange: 0, sync: 0, flops: 0, bytes: 0 });
    const group = groups.get(name);
    group.count += 1;
    group.total += read.cycles(row) * read.runs(row);
    for (const measure of ["cycles", "compute", "exchange", "sync", "flops", "bytes"])
      group[measure] += read[measure](row);
  }
  return [...groups.values()];
}

/** Of a source line, the name of the file is enough for a chart. */
const labelOf = (name) => (/:\d+$/.test(name) ? name.slice(name.lastIndexOf("/") + 1) : name);

function operationsTab(report, panel) {
  const { operations } = report.tables;
  if (!operations.rows) {
    panel.append(empty("This model has no operations."));
    return undefined;
  }
  const cycles = operations.reader("cycles", 0),
    runs = operations.numbers("runs");
  const total = (row) => cycles(row) * runs[row];
  let all = 0;
  for (let row = 0; row < operations.rows; row++) all += total(row);
  const state = { by: "layer", measure: operations.has("cycles") ? "total" : "bytes" };
  const div = chart("The largest by the chosen measure", "tall");
  const place = h("div", {}),
    about = h("div", {});

  const share = (value) => format.share(all ? value / all : 0);
  const number = (key, title, shown, extra) => ({
    key,
    title,
    numeric: true,
    format: shown,
    value: (row) => row[key],
    width: "7.5rem",
    ...extra,
  });
  const single = () => {
    const grid = new Grid(
      [
        column(operations, "name", "Operation", { width: "minmax(13rem, 2fr)" }),
        column(operations, "operator", "Operator", { width: "minmax(11rem, 1.5fr)" }),
        {
          key: "layer",
          title: "Module",
          width: "minmax(9rem, 1fr)",
          value: (row) => moduleName(operations.at("layer", row)),
        },
        column(operations, "stage", "Stage", { width: "10rem" }),
        { key: "ipu", title: "IPU", width: "4.5rem", value: (row) => ipuName(report, operations.at("ipu", row)) },
        numeric(operations, "cycles", "Cycles", format.cycles, { width: "6.5rem", hint: "Cycles of one run" }),
        {
          key: "total",
          title: "Share",
          numeric: true,
          width: "5rem",
          value: total,
          format: share,
          hint: "Share of the cycles of all operations in a call",
        },
        numeric(operations, "flops", "FLOPs", format.flops, { width: "6rem" }),
        numeric(operations, "bytes", "Bytes", format.bytes, { width: "6.5rem" }),
        numeric(operations, "tiles", "Tiles", format.number, { width: "5rem" }),
        numeric(operations, "tile_use", "Tile use", format.share, {
          width: "6rem",
          hint: "Share of the cycles of all tiles in which they compute",
        }),
        {
          key: "source",
          title: "Source",
          width: "minmax(10rem, 1fr)",
          value: operations.reader("source", ""),
          format: (text) => text.slice(text.lastIndexOf("/") + 1),
        },
      ],
      { label: "Operations", sort: ["total", true], onSelect: describe },
    );
    grid.set(range(operations.rows));
    return grid;
  };
  const grouped = () => {
    const grid = new Grid(
      [
        { key: "name", title: GROUPS[state.by], width: "minmax(18rem, 3fr)", value: (row) => row.name },
        number("count", "Operations", format.number, { width: "7rem" }),
        number("cycles", "Cycles", format.cycles, { hint: "Cycles of one run of each" }),
        number("total", "Share", share, { width: "5rem", hint: "Share of the cycles of all operations in a call" }),
        number("compute", "Compute", format.cycles),
        number("exchange", "Exchange", format.cycles),
        number("sync", "Sync", format.cycles),
        number("flops", "FLOPs", format.flops),
        number("bytes", "Bytes", format.bytes),
      ],
      { label: GROUPS[state.by], sort: ["total", true] },
    );
    grid.set(groupedOperations(operations, state.by));
    return grid;
  };

  function describe(row) {
    const of = (key, shown = format.text) => shown(operations.at(key, row));
    about.replaceChildren(
      h("h3", {}, of("name")),
      smallTable(
        [],
        [
          ["Operator", of("operator")],
          ["Module", of("layer") || "–"],
          ["Stage", of("stage")],
          ["IPU", ipuName(report, operations.at("ipu", row))],
          ["Source", operations.reader("source", "left out")(row) || "–"],
          ...(operations.has("cycles")
            ? [
                ["Cycles of one run", of("cycles", format.cycles)],
                [
                  "Of these, compute, exchange, sync",
                  ["compute", "exchange", "sync"].map((key) => of(key, format.cycles)).join(", "),
                ],
              ]
            : []),
          ["Runs in a call", of("runs", format.number)],
          ...(operations.has("flops") ? [["FLOPs", of("flops", format.flops)]] : []),
          ["Bytes", of("bytes", format.bytes)],
          ["Tiles", of("tiles", format.number)],
          ["Tile use", of("tile_use", format.share)],
          ["Recomputed", operations.at("recomputed", row) ? "yes" : "no"],
          ["Cost", operations.at("covered", row) ? "by a rule" : "a guess"],
        ],
      ),
    );
  }

  function draw() {
    const [title, shown] = MEASURES[state.measure];
    const rows =
      state.by === "operation"
        ? Array.from(range(operations.rows), (row) => ({
            name: operations.at("name", row),
            total: total(row),
            flops: operations.reader("flops", 0)(row),
            bytes: operations.at("bytes", row),
          }))
        : groupedOperations(operations, state.by);
    const largest = rows.sort((a, b) => b[state.measure] - a[state.measure]).slice(0, 15);
    return charts.draw(
      div,
      [
        {
          type: "bar",
          orientation: "h",
          y: largest.map((_, i) => i),
          x: largest.map((row) => row[state.measure]),
          marker: { color: PALETTE[0] },
          text: largest.map((row) => shown(row[state.measure])),
          textposition: "auto",
          hovertext: largest.map((row) => `${escaped(row.name)}<br>${shown(row[state.measure])}`),
          hoverinfo: "text",
        },
      ],
      {
        xaxis: { title: { text: title }, exponentformat: "SI", rangemode: "tozero" },
        margin: { t: 32, r: 20, b: 45, l: 160 },
        yaxis: {
          range: [largest.length - 0.4, -0.6],
          tickvals: largest.map((_, i) => i),
          ticktext: largest.map((row) => escaped(shortened(labelOf(row.name), 34))),
          fixedrange: true,
        },
      },
    );
  }

  function show() {
    about.replaceChildren();
    place.replaceChildren(...(state.by === "operation" ? single() : grouped()).parts());
    return draw();
  }

  const measures = Object.entries(MEASURES)
    .filter(([key]) => operations.has(key === "total" ? "cycles" : key))
    .map(([key, [title]]) => [key, title]);
  const groups = Object.entries(GROUPS).filter(([key]) => key !== "source" || operations.has("source"));
  panel.append(
    card(
      "The largest",
      controls(
        choice("By", groups, state.by, (by) => {
          state.by = by;
          show();
        }),
        choice("Measure", measures, state.measure, (measure) => {
          state.measure = measure;
          draw();
        }),
      ),
      div,
    ),
    card("All", place, about),
  );
  return show();
}
