// Charts are plotly's. Its script is unpacked when the first chart is drawn.

const charts = {
  library: null,
  templates: null,
  drawn: new Map(),

  /** The layout of bars on top of each other, without gaps between neighbours. */
  stacked: { barmode: "stack", bargap: 0, hovermode: "closest" },

  load() {
    this.library ??= (async () => {
      const [code, templates] = await Promise.all([
        unpackedText(document.getElementById("packed-plotly")),
        unpackedText(document.getElementById("packed-templates")),
      ]);
      this.templates = JSON.parse(templates);
      document.head.append(h("script", {}, code));
      return window.Plotly;
    })();
    return this.library;
  },

  layout(extra) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      automargin: true,
      gridcolor: colour("--line"),
      zerolinecolor: colour("--line"),
      linecolor: colour("--line"),
    };
    const made = {
      template: this.templates[theme.dark ? "dark" : "light"],
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", size: 12 },
      hoverlabel: {
        bgcolor: colour("--panel"),
        bordercolor: colour("--line"),
        font: { color: colour("--text") },
        align: "left",
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
      margin: { t: 30, r: 20, b: 50, l: 70 },
      separators: ".,",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "normal" },
      ...extra,
    };
    for (const [name, value] of Object.entries(made)) {
      if (/^[xy]axis\d*$/.test(name)) made[name] = { ...axis, ...value };
    }
    made.xaxis ??= axis;
    made.yaxis ??= axis;
    return made;
  },

  /** Draw, or draw anew; resolves when it is on the screen. */
  async draw(div, traces, layout, listeners = {}) {
    const plotly = await this.load();
    const first = !this.drawn.has(div);
    this.drawn.set(div, { traces, layout });
    await plotly.react(div, traces, this.layout(layout), {
      responsive: true,
      displaylogo: false,
      scrollZoom: false,
      plotlyServerURL: "",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"], // what is in a report stays here
    });
    div.setAttribute("data-drawn", "");
    if (first) for (const [name, listener] of Object.entries(listeners)) div.on(name, listener);
  },

  forget() {
    for (const div of this.drawn.keys()) window.Plotly?.purge(div);
    this.drawn.clear();
  },

  async redraw() {
    for (const [div, { traces, layout }] of this.drawn) {
      const kept = { ...layout };
      for (const name of ["xaxis", "yaxis"]) {
        const shown = div.layout?.[name];
        if (shown && !shown.autorange && kept[name]) kept[name] = { ...kept[name], range: shown.range };
      }
      await this.draw(div, traces, kept);
    }
  },
};

const chart = (label, size = "") => h("div", { class: `chart ${size}`, role: "img", "aria-label": label });

/** Buttons that zoom along x, for the keyboard and for those who do not drag. `full` gives the whole range. */
function zoomButtons(div, full) {
  const shown = () => (div.layout?.xaxis?.range ?? full()).map(Number);
  const go = (from, to) => {
    const [low, high] = full();
    const width = Math.min(to - from, high - low);
    const start = Math.max(low, Math.min(from, high - width));
    window.Plotly?.relayout(div, { "xaxis.range": [start, start + width] });
  };
  const scaled = (factor) => () => {
    const [from, to] = shown();
    const middle = (from + to) / 2,
      half = ((to - from) / 2) * factor;
    go(middle - half, middle + half);
  };
  const moved = (share) => () => {
    const [from, to] = shown();
    go(from + share * (to - from), to + share * (to - from));
  };
  const button = (text, label, onclick) =>
    h("button", { type: "button", class: "button", "aria-label": label, title: label, onclick }, text);
  return h(
    "fieldset",
    { role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in", scaled(0.5)),
    button("−", "Zoom out", scaled(2)),
    button("◀", "Move left", moved(-0.5)),
    button("▶", "Move right", moved(0.5)),
    button("All", "Show all", () => go(...full())),
  );
}
