// Liveness: bytes that are not always live over the steps of a program, and the largest tensors at any step.

function livenessTab(report, panel) {
  const { liveness, variables } = report.tables;
  if (!liveness.rows) {
    panel.append(empty("The programs of this model have no steps that need memory for a time."));
    return undefined;
  }
  const offsets = livenessOffsets(report);
  const state = { ipu: 0, always: false, step: 0 };
  const div = chart("Memory over the steps of the program");
  const slider = h("input", {
    type: "range",
    min: "0",
    "aria-label": "Step",
    oninput: () => choose(Number(slider.value)),
  });
  const box = h("input", {
    type: "number",
    min: "0",
    "aria-label": "Number of the step",
    style: "width:6rem",
    onchange: () => choose(Number(box.value)),
  });
  const about = h("p", { role: "status" });
  const zoom = zoomButtons(div, () => [0, steps()]);
  const grid = variables
    ? new Grid(variableColumns(report), { label: "Tensors at this step", sort: ["bytes", true] })
    : null;
  const steps = () => offsets[state.ipu + 1] - offsets[state.ipu];
  const bytes = liveness.numbers("bytes");
  const added = () => (state.always ? report.document.memory.ipus[state.ipu].alwaysLive : 0);

  function draw() {
    const first = offsets[state.ipu],
      x = range(steps());
    const most = x.reduce((found, i) => Math.max(found, bytes[first + i] + added()), 0);
    const [unit, unitName] = unitOf(most);
    const y = Array.from(x, (i) => (bytes[first + i] + added()) / unit);
    const closed = (values, end) => [...values, end]; // a step lasts until the next one, the last one, too
    const text = Array.from(x, (i) =>
      [
        `Step ${i}: ${escaped(liveness.at("name", first + i))}`,
        escaped(moduleName(liveness.at("layer", first + i))),
        format.bytes(bytes[first + i] + added()),
      ].join("<br>"),
    );
    return charts.draw(
      div,
      [
        {
          type: "scatter",
          mode: "lines",
          x: closed(x, steps()),
          y: closed(y, y.at(-1) ?? 0),
          line: { shape: "hv", width: 1.5, color: PALETTE[0] },
          fill: "tozeroy",
          hovertext: text,
          hoverinfo: "text",
          showlegend: false,
        },
        {
          type: "scatter",
          mode: "markers",
          x: [state.step],
          y: [y[state.step]],
          marker: { size: 11, color: PALETTE[1] },
          hoverinfo: "skip",
          showlegend: false,
        },
      ],
      {
        hovermode: "closest",
        xaxis: { title: { text: "step of the program" }, range: div.layout?.xaxis?.range?.slice() ?? [0, steps()] },
        yaxis: {
          title: { text: `${unitName} ${state.always ? "live" : "not always live"}` },
          rangemode: "tozero",
          fixedrange: true,
        },
        shapes: [
          {
            type: "line",
            yref: "paper",
            y0: 0,
            y1: 1,
            x0: state.step,
            x1: state.step,
            line: { color: PALETTE[1], width: 1.5 },
          },
        ],
      },
      { plotly_click: (event) => choose(event.points[0].pointIndex) },
    );
  }

  function choose(step) {
    state.step = Math.max(0, Math.min(steps() - 1, Number.isFinite(step) ? Math.round(step) : 0));
    slider.value = box.value = state.step;
    if (steps() === 0) {
      about.textContent = `${ipuName(report, state.ipu)} has no steps that need memory for a time.`;
      grid?.set([]);
      return draw();
    }
    const row = offsets[state.ipu] + state.step;
    const layer = moduleName(liveness.at("layer", row));
    const always = report.document.memory.ipus[state.ipu].alwaysLive;
    about.textContent =
      `Step ${state.step}, ${liveness.at("name", row)}${layer ? ` in ${layer}` : ""}: ` +
      `${format.bytes(bytes[row])} not always live, ${format.bytes(always)} always live.`;
    if (grid) {
      const from = variables.numbers("first_step"),
        to = variables.numbers("last_step"),
        ipus = variables.numbers("ipu");
      grid.set(
        range(variables.rows).filter(
          (i) => ipus[i] === state.ipu && (from[i] < 0 ? state.always : from[i] <= row && row <= to[i]),
        ),
      );
    }
    return draw();
  }

  function chooseIpu(ipu) {
    state.ipu = ipu;
    slider.max = box.max = steps() - 1;
    if (div.layout) delete div.layout.xaxis;
    return choose(peak());
  }

  function peak() {
    let best = offsets[state.ipu];
    for (let row = best; row < offsets[state.ipu + 1]; row++) if (bytes[row] > bytes[best]) best = row;
    return best - offsets[state.ipu];
  }

  panel.append(
    card(
      "Memory over time",
      controls(
        select("IPU", ipuChoices(report), (value) => chooseIpu(Number(value)), "0"),
        check("Include what is always live", false, (value) => {
          state.always = value;
          choose(state.step);
        }),
        zoom,
        h("button", { type: "button", class: "button", onclick: () => choose(peak()) }, "Go to the peak"),
      ),
      div,
      controls(h("label", { class: "grow" }, "Step", slider), box),
    ),
    card(
      "The largest tensors at this step",
      about,
      ...(grid ? grid.parts() : [empty("Tensors were left out of this report (autoReport.outputLoweredVars).")]),
    ),
  );
  return chooseIpu(0);
}

/** Steps of all IPUs are in one table: where those of each IPU begin, and the end. */
function livenessOffsets(report) {
  const ipus = report.tables.liveness.numbers("ipu");
  const offsets = new Array(ipuCount(report) + 1).fill(0);
  for (const ipu of ipus) offsets[ipu + 1] += 1;
  for (let i = 1; i < offsets.length; i++) offsets[i] += offsets[i - 1];
  return offsets;
}
