// Memory: bytes of each tile, by category or by liveness, and the tensors on them.

const TILE_BARS = 250; // at most; a bar of several tiles shows the fullest of them

function memoryTab(report, panel) {
  const { tiles } = report.tables;
  const perIpu = report.document.target.tilesPerIpu;
  const limit = report.document.target.bytesPerTile;
  const state = {
    ipu: ipuCount(report) > 1 ? -1 : 0,
    by: "category",
    gaps: true,
    limit: false,
    shown: null,
    tile: null,
  };
  const div = chart("Memory of each tile", "tall");
  const categories = Object.keys(tiles.columns);

  const groups = () => {
    const used = categories.filter((category) => state.gaps || category !== report.gaps);
    if (state.by === "category") return used.map((category) => [category, [category]]);
    if (state.by === "total") return [["all", used]];
    const live = used.filter((category) => category !== report.notAlwaysLive && category !== report.gaps);
    return [
      ["always live", live],
      ["not always live", [report.notAlwaysLive]],
      ...(state.gaps ? [["gaps", [report.gaps]]] : []),
    ];
  };
  const bounds = () => (state.ipu < 0 ? [0, tiles.rows] : [state.ipu * perIpu, (state.ipu + 1) * perIpu]);
  const full = () => (state.ipu < 0 ? [-0.5, tiles.rows - 0.5] : [-0.5, perIpu - 0.5]);
  const zoom = zoomButtons(div, full);

  function totals(names) {
    const sums = new Float64Array(tiles.rows);
    for (const name of names) {
      if (!tiles.has(name)) continue;
      const values = tiles.numbers(name);
      for (let i = 0; i < values.length; i++) sums[i] += values[i];
    }
    return sums;
  }

  function draw() {
    const [first, last] = bounds();
    const [from, to] = state.shown ?? full();
    const low = Math.max(first, first + Math.floor(from + 0.5)),
      high = Math.min(last, first + Math.ceil(to + 0.5));
    const width = Math.max(1, Math.ceil((high - low) / TILE_BARS));
    const made = groups().map(([name, parts]) => [name, totals(parts)]);
    const all = new Float64Array(tiles.rows);
    for (const [, sums] of made) for (let i = 0; i < sums.length; i++) all[i] += sums[i];
    const fullest = [];
    for (let start = low; start < high; start += width) {
      let best = start;
      for (let i = start; i < Math.min(high, start + width); i++) if (all[i] > all[best]) best = i;
      fullest.push([best, start]);
    }
    const x = fullest.map(([, start]) => start - first + (width - 1) / 2);
    const where = ([tile]) =>
      `${ipuName(report, Math.floor(tile / perIpu))}, tile ${tile % perIpu}${width > 1 ? ` (fullest of ${width})` : ""}`;
    const traces = made.map(([name, sums]) => ({
      type: "bar",
      name: escaped(name),
      x,
      y: fullest.map(([tile]) => sums[tile] / 1024),
      width: x.map(() => width),
      marker: {
        color: colourOf(
          state.by === "category" ? categories.indexOf(name) : made.findIndex(([other]) => other === name),
        ),
        line: { width: 0 },
      },
      hovertext: fullest.map(
        (it) => `${where(it)}<br>${escaped(name)}: ${format.bytes(sums[it[0]])}<br>all: ${format.bytes(all[it[0]])}`,
      ),
      hoverinfo: "text",
      customdata: fullest.map(([tile]) => tile),
    }));
    const lines = state.limit
      ? [
          {
            type: "line",
            xref: "paper",
            x0: 0,
            x1: 1,
            y0: limit / 1024,
            y1: limit / 1024,
            line: { color: "#d1495b", dash: "dash" },
          },
        ]
      : [];
    const starts =
      state.ipu < 0 && ipuCount(report) > 1
        ? report.document.memory.ipus.map((_, place) => ({
            type: "line",
            yref: "paper",
            y0: 0,
            y1: 1,
            x0: place * perIpu - 0.5,
            x1: place * perIpu - 0.5,
            line: { color: "#7f8c99", width: 1, dash: "dot" },
          }))
        : [];
    const ticks =
      state.ipu < 0 && !state.shown
        ? {
            tickvals: report.document.memory.ipus.map((_, place) => (place + 0.5) * perIpu),
            ticktext: report.document.memory.ipus.map((_, place) => ipuName(report, place)),
          }
        : {};
    const top = fullest.reduce((most, [tile]) => Math.max(most, all[tile]), state.limit ? limit : 0) / 1024;
    const names =
      made.length > 4
        ? { legend: { orientation: "v", x: 1.02, y: 1, xanchor: "left", yanchor: "top", traceorder: "reversed" } }
        : {};
    return charts.draw(
      div,
      traces,
      {
        ...charts.stacked,
        shapes: [...lines, ...starts],
        ...names,
        xaxis: { title: { text: state.ipu < 0 ? "tiles of all IPUs" : "tile" }, range: [from, to], ...ticks },
        yaxis: { title: { text: "KiB" }, range: [0, 1.05 * top || 1], fixedrange: true },
      },
      {
        plotly_relayout: (change) => {
          if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
          const [low2, high2] = change["xaxis.autorange"] ? full() : div.layout.xaxis.range.map(Number);
          const whole = low2 <= full()[0] && high2 >= full()[1];
          state.shown = whole ? null : [low2, high2];
          draw();
        },
        plotly_click: (event) => chooseTile(event.points[0].customdata),
      },
    );
  }

  const variables = memoryVariables(report);
  const chosen = h("span", { class: "muted", role: "status" });
  function chooseTile(tile) {
    state.tile = tile;
    chosen.textContent = tile === null ? "" : `on ${ipuName(report, Math.floor(tile / perIpu))}, tile ${tile % perIpu}`;
    variables?.showTile(tile);
  }
  const change = (key) => (value) => {
    state[key] = key === "ipu" ? Number(value) : value;
    if (key === "ipu") state.shown = null;
    draw();
  };
  panel.append(
    card(
      "Memory of each tile",
      controls(
        select("IPU", ipuChoices(report, ipuCount(report) > 1 ? "All IPUs" : null), change("ipu"), String(state.ipu)),
        choice(
          "By",
          [
            ["category", "Category"],
            ["liveness", "Liveness"],
            ["total", "Total"],
          ],
          "category",
          change("by"),
        ),
        check("Include gaps", true, change("gaps")),
        check("Show the limit", false, change("limit")),
        zoom,
      ),
      div,
      h("p", { class: "muted" }, "Drag to zoom. Choose a bar to see the tensors on its tile."),
    ),
    memoryTotals(report),
  );
  if (variables) {
    panel.append(
      card(
        "Tensors",
        ...variables.grid.parts(
          h("button", { type: "button", class: "button", onclick: () => chooseTile(null) }, "All tiles"),
          chosen,
        ),
      ),
    );
  } else {
    panel.append(card("Tensors", empty("Tensors were left out of this report (autoReport.outputLoweredVars).")));
  }
  return draw();
}

function memoryTotals(report) {
  const { ipus } = report.document.memory;
  const categories = [...new Set(ipus.flatMap((ipu) => Object.keys(ipu.byCategory)))];
  const sum = (read) => ipus.reduce((total, ipu) => total + (read(ipu) ?? 0), 0);
  const row = (name, read) => [
    name,
    ...ipus.map((ipu) => format.bytes(read(ipu) ?? 0)),
    ...(ipus.length > 1 ? [format.bytes(sum(read))] : []),
  ];
  const columns = ["", ...ipus.map((_, place) => ipuName(report, place)), ...(ipus.length > 1 ? ["All"] : [])];
  const numbers = new Set(columns.map((_, i) => i).filter((i) => i > 0));
  return card(
    "By category and by liveness",
    h(
      "div",
      { style: "overflow-x:auto", tabindex: "0", role: "region", "aria-label": "Memory by category" },
      smallTable(
        columns,
        [
          ...categories.map((category) => row(category, (ipu) => ipu.byCategory[category])),
          row("Including gaps", (ipu) => ipu.includingGaps),
          row("Excluding gaps", (ipu) => ipu.excludingGaps),
          row("Always live", (ipu) => ipu.alwaysLive),
          row("Not always live", (ipu) => ipu.notAlwaysLive),
          [
            "Fullest tile",
            ...ipus.map((ipu) => `${ipu.maxTile}: ${format.bytes(ipu.maxTileBytes)}`),
            ...(ipus.length > 1 ? [""] : []),
          ],
          [
            "Tiles out of memory",
            ...ipus.map((ipu) => format.number(ipu.tilesOverLimit)),
            ...(ipus.length > 1 ? [format.number(sum((ipu) => ipu.tilesOverLimit))] : []),
          ],
        ],
        numbers,
      ),
    ),
  );
}

/** The table of tensors; null if the report has none. */
function memoryVariables(report) {
  const { variables } = report.tables;
  if (!variables) return null;
  const perIpu = report.document.target.tilesPerIpu;
  const computing = perIpu - report.document.target.ioTiles; // tensors go round these
  const first = variables.numbers("first_tile"),
    count = variables.numbers("tiles"),
    ipus = variables.numbers("ipu");
  const grid = new Grid(variableColumns(report), { label: "Tensors", sort: ["bytes", true] });
  grid.set(range(variables.rows));
  return {
    grid,
    showTile(tile) {
      grid.set(
        tile === null
          ? range(variables.rows)
          : range(variables.rows).filter(
              (row) =>
                ipus[row] === Math.floor(tile / perIpu) &&
                tile % perIpu < computing &&
                ((tile % perIpu) - first[row] + computing) % computing < count[row],
            ),
      );
    },
  };
}

function variableColumns(report) {
  const { variables } = report.tables;
  const always = variables.numbers("first_step");
  return [
    column(variables, "name", "Name", { width: "minmax(14rem, 2fr)" }),
    column(variables, "category", "Category", { width: "15rem" }),
    {
      key: "layer",
      title: "Module",
      width: "minmax(8rem, 1fr)",
      value: (row) => moduleName(variables.at("layer", row)),
    },
    { key: "ipu", title: "IPU", width: "5rem", value: (row) => ipuName(report, variables.at("ipu", row)) },
    { key: "live", title: "Live", width: "7rem", value: (row) => (always[row] < 0 ? "always" : "for a time") },
    numeric(variables, "bytes", "Bytes", format.bytes),
    numeric(variables, "tiles", "Tiles", format.number, { width: "6rem" }),
    numeric(variables, "first_tile", "First tile", format.number, { width: "7rem" }),
    numeric(variables, "tile_bytes", "On a tile", format.bytes),
  ];
}
