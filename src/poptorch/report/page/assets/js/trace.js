// Execution trace: what each IPU does from cycle to cycle, for one micro-batch and one weight update.

function traceTab(report, panel) {
  const { steps } = report.tables;
  if (!steps || !steps.rows) {
    panel.append(
      empty("There are no cycles in this report (profiler.includeCycleEstimates), or no program takes any."),
    );
    return undefined;
  }
  const state = { view: "flat", ipu: ipuCount(report) > 1 ? -1 : 0 };
  const place = h("div", {});
  const clock = report.document.target.clockFrequencyInHz;
  const both = (cycles) => `${format.cycles(cycles)} cycles (${format.seconds(cycles / clock)})`;
  const ipuBox = select(
    "IPU",
    ipuChoices(report, ipuCount(report) > 1 ? "All IPUs" : null),
    (value) => {
      state.ipu = Number(value);
      show();
    },
    String(state.ipu),
  );

  async function show() {
    charts.drawn.delete(place.querySelector(".chart"));
    if (state.view === "flame" && state.ipu < 0) {
      state.ipu = 0; // layers of several IPUs would not fit above each other
      ipuBox.querySelector("select").value = "0";
    }
    const made = { flat: flatTrace, flame: flameTrace, bsp: bspTrace }[state.view](report, state.ipu, both);
    place.replaceChildren(controls(made.zoom), made.div, h("p", { class: "muted" }, made.note));
    await made.draw();
  }

  panel.append(
    card(
      "Execution trace",
      controls(
        choice(
          "View",
          [
            ["flat", "Flat"],
            ["flame", "Flame"],
            ["bsp", "BSP"],
          ],
          state.view,
          (view) => {
            state.view = view;
            show();
          },
        ),
        ipuBox,
      ),
      place,
    ),
    card("Cycles of the trace by IPU", traceTotals(report)),
  );
  return show();
}

const chosenSteps = (report, ipu) => {
  const ipus = report.tables.steps.numbers("ipu");
  return range(report.tables.steps.rows).filter((row) => ipu < 0 || ipus[row] === ipu);
};

function flatTrace(report, ipu, both) {
  const { steps, programs, operations } = report.tables;
  const rows = chosenSteps(report, ipu);
  const ipus = steps.numbers("ipu"),
    starts = steps.numbers("start"),
    cycles = steps.numbers("cycles"),
    owner = steps.numbers("program");
  const operation = (i) => programs.at("operation", owner[rows[i]]);
  const name = (i) => (operation(i) >= 0 ? operations.at("name", operation(i)) : programs.at("name", owner[rows[i]]));
  const lanes = new Lanes(
    "Execution trace, flat",
    {
      count: rows.length,
      lane: (i) => (ipu < 0 ? ipus[rows[i]] : 0),
      start: (i) => starts[rows[i]],
      length: (i) => cycles[rows[i]],
      kind: (i) => steps.at("kind", rows[i]),
      name,
      hover: (i) =>
        [
          `<b>${escaped(name(i))}</b>`,
          steps.at("kind", rows[i]),
          escaped(programs.at("name", owner[rows[i]])),
          operation(i) >= 0 ? escaped(moduleName(operations.at("layer", operation(i)))) : "",
          both(cycles[rows[i]]),
          operation(i) >= 0 ? escaped(operations.reader("source")(operation(i))) : "",
        ]
          .filter(Boolean)
          .join("<br>"),
    },
    {
      lanes: (ipu < 0 ? [...range(ipuCount(report))] : [ipu]).map((place) => ipuName(report, place)),
      colours: PHASES,
      axis: "cycles",
      value: both,
    },
  );
  return {
    ...viewOf(lanes),
    note:
      "One micro-batch goes through all stages; then IPUs update their weights at the same time. " +
      "The overlap of micro-batches is in the tab Pipeline.",
  };
}

function flameTrace(report, ipu, both) {
  const { flames, operations } = report.tables;
  const ipus = flames.numbers("ipu"),
    depths = flames.numbers("depth"),
    starts = flames.numbers("start"),
    ends = flames.numbers("end"),
    owner = flames.numbers("operation");
  const rows = range(flames.rows).filter((row) => ipus[row] === ipu);
  const deepest = rows.reduce((most, row) => Math.max(most, depths[row]), 0);
  const lanes = new Lanes(
    "Execution trace, flame",
    {
      count: rows.length,
      lane: (i) => depths[rows[i]],
      start: (i) => starts[rows[i]],
      length: (i) => ends[rows[i]] - starts[rows[i]],
      kind: (i) => flames.at("kind", rows[i]),
      name: (i) => flames.at("name", rows[i]),
      hover: (i) =>
        [
          `<b>${escaped(flames.at("name", rows[i]))}</b>`,
          flames.at("kind", rows[i]),
          both(ends[rows[i]] - starts[rows[i]]),
          owner[rows[i]] >= 0 ? escaped(operations.reader("source")(owner[rows[i]])) : "",
        ]
          .filter(Boolean)
          .join("<br>"),
    },
    {
      lanes: Array.from({ length: deepest + 1 }, (_, depth) => `level ${depth}`),
      colours: PHASES,
      axis: "cycles",
      value: both,
    },
  );
  return {
    ...viewOf(lanes),
    note: `${ipuName(report, ipu)}: stages at the top, then modules, operations and the phases of their programs.`,
  };
}

const viewOf = (lanes) => ({ div: lanes.div, zoom: lanes.zoom, draw: () => lanes.draw() });

const BSP_BINS = 240;

/** The share of each phase in slices of the time in sight. */
function bspTrace(report, ipu, both) {
  const { steps } = report.tables;
  const rows = chosenSteps(report, ipu);
  const starts = steps.numbers("start"),
    cycles = steps.numbers("cycles"),
    kinds = steps.numbers("kind"),
    levels = steps.levels("kind");
  const end = rows.reduce((most, row) => Math.max(most, starts[row] + cycles[row]), 1);
  const div = chart("Execution trace, bulk-synchronous phases");
  let shown = [0, end];

  function draw() {
    const [from, to] = shown,
      width = (to - from) / BSP_BINS;
    const bins = levels.map(() => new Float64Array(BSP_BINS));
    for (const row of rows) {
      const start = Math.max(from, starts[row]),
        stop = Math.min(to, starts[row] + cycles[row]);
      for (let now = start; now < stop;) {
        const bin = Math.min(BSP_BINS - 1, Math.floor((now - from) / width));
        const next =
          bin === BSP_BINS - 1 ? stop : Math.min(stop, Math.max(from + (bin + 1) * width, now + width * 1e-9));
        bins[kinds[row]][bin] += next - now;
        now = next;
      }
    }
    const lanes = ipu < 0 ? ipuCount(report) : 1;
    const x = Array.from({ length: BSP_BINS }, (_, bin) => from + (bin + 0.5) * width);
    const order = Object.keys(PHASES);
    const traces = levels
      .map((kind, i) => ({
        type: "bar",
        name: kind,
        x,
        y: Array.from(bins[i], (spent) => (100 * spent) / width / lanes),
        width,
        marker: { color: PHASES[kind], line: { width: 0 } },
        hovertext: x.map(
          (at, bin) => `${kind}: ${format.share(bins[i][bin] / width / lanes)}<br>of ${both(width)}<br>at ${both(at)}`,
        ),
        hoverinfo: "text",
      }))
      .sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
    return charts.draw(
      div,
      traces,
      {
        ...charts.stacked,
        xaxis: { title: { text: "cycles" }, range: [from, to], exponentformat: "SI" },
        yaxis: {
          title: { text: ipu < 0 ? "% of the time of all IPUs" : "% of the time" },
          range: [0, 100.5],
          fixedrange: true,
        },
      },
      {
        plotly_relayout: (change) => {
          if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
          shown = change["xaxis.autorange"] ? [0, end] : div.layout.xaxis.range.map(Number);
          draw();
        },
      },
    );
  }
  return {
    div,
    zoom: zoomButtons(div, () => [0, end]),
    draw,
    note:
      "Compute, exchange and sync take turns: the share of each in slices of the time in sight. " +
      "What is missing to 100 % is waiting for other IPUs.",
  };
}

function traceTotals(report) {
  const { steps, programs } = report.tables;
  const levels = Object.keys(PHASES).filter((kind) => steps.levels("kind").includes(kind));
  const sums = Array.from({ length: ipuCount(report) }, () => Object.fromEntries(levels.map((kind) => [kind, 0])));
  const useful = new Float64Array(ipuCount(report)),
    possible = new Float64Array(ipuCount(report));
  const { tilesPerIpu } = report.document.target;
  for (let row = 0; row < steps.rows; row++) {
    const ipu = steps.at("ipu", row),
      program = steps.at("program", row);
    sums[ipu][steps.at("kind", row)] += steps.at("cycles", row);
    if (steps.at("kind", row) === "compute") {
      const slowest = programs.at("tile_cycles", program);
      possible[ipu] += steps.at("cycles", row) * tilesPerIpu;
      useful[ipu] += slowest ? (steps.at("cycles", row) / slowest) * programs.at("total_cycles", program) : 0;
    }
  }
  const columns = ["IPU", ...levels, "tile balance"];
  const rows = sums.map((sum, place) => [
    ipuName(report, place),
    ...levels.map((kind) => format.cycles(sum[kind])),
    possible[place] ? format.share(useful[place] / possible[place]) : "–",
  ]);
  return [
    smallTable(columns, rows, new Set(columns.map((_, i) => i).filter((i) => i > 0))),
    h(
      "p",
      { class: "muted" },
      "Tile balance: of the cycles that all tiles have while the slowest one computes, " +
        "the share in which they compute, too.",
    ),
  ];
}
