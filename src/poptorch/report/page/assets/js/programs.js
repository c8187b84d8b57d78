// Program tree: loops and sequences with exchanges and computations as leaves.

class Tree {
  constructor(programs) {
    this.children = Array.from({ length: programs.rows }, () => null);
    this.roots = [];
    this.depth = new Uint16Array(programs.rows);
    this.parents = programs.numbers("parent");
    for (let row = 0; row < programs.rows; row++) {
      const parent = this.parents[row];
      if (parent < 0) this.roots.push(row);
      else (this.children[parent] ??= []).push(row);
      this.depth[row] = parent < 0 ? 0 : this.depth[parent] + 1;
    }
    this.open = new Set();
  }

  /** Rows in sight, in order. */
  visible(only = null) {
    const found = [];
    const visit = (row) => {
      if (only && !only.has(row)) return;
      found.push(row);
      if (this.children[row] && (only || this.open.has(row))) this.children[row].forEach(visit);
    };
    this.roots.forEach(visit);
    return found;
  }

  /** Those rows with everything around them. */
  withParents(rows) {
    const found = new Set();
    for (let row of rows) for (; row >= 0 && !found.has(row); row = this.parents[row]) found.add(row);
    return found;
  }

  /** Open those, and close all others. */
  openWhere(isOpen) {
    this.open.clear();
    this.children.forEach((children, row) => {
      if (children && isOpen(row)) this.open.add(row);
    });
  }
}

/** Cycles of each program with everything in it, all its turns. Children come after their parents. */
function programCycles(programs) {
  if (programs.has("inside")) return programs.numbers("inside"); // on the clock of the call: IPUs work side by side
  const own = programs.numbers("cycles"),
    repeat = programs.numbers("repeat"),
    parents = programs.numbers("parent");
  const inside = new Float64Array(programs.rows);
  for (let row = programs.rows - 1; row >= 0; row--) {
    inside[row] = (inside[row] + own[row]) * repeat[row];
    if (parents[row] >= 0) inside[parents[row]] += inside[row];
  }
  return inside;
}

function programsTab(report, panel) {
  const { programs, operations } = report.tables;
  const tree = new Tree(programs);
  const cycles = programCycles(programs);
  const about = h("div", {});
  const toggle = (row) => {
    if (tree.open.has(row)) tree.open.delete(row);
    else tree.open.add(row);
    show(true);
  };
  const grid = new Grid(
    [
      {
        key: "name",
        title: "Program",
        width: "minmax(24rem, 3fr)",
        value: (row) => programs.at("name", row),
        cell: (row) =>
          h(
            "span",
            { style: `padding-left:${tree.depth[row] * 1.1}rem` },
            tree.children[row]
              ? h(
                  "button",
                  {
                    type: "button",
                    class: "twig",
                    tabindex: "-1",
                    "aria-expanded": String(tree.open.has(row)),
                    "aria-label": "Show what is inside",
                    onclick: (event) => {
                      event.stopPropagation();
                      toggle(row);
                    },
                  },
                  tree.open.has(row) || grid.query ? "▾" : "▸",
                )
              : h("span", { class: "twig", style: "display:inline-block" }),
            programs.at("name", row),
          ),
      },
      column(programs, "type", "Type", { width: "10rem" }),
      { key: "ipu", title: "IPU", width: "5rem", value: (row) => ipuName(report, programs.at("ipu", row)) },
      numeric(programs, "repeat", "Times", format.number, { width: "5rem" }),
      {
        key: "cycles",
        title: "Cycles",
        numeric: true,
        format: format.cycles,
        value: (row) => cycles[row],
        hint: "Cycles with everything inside and all turns; IPUs work at the same time",
      },
      numeric(programs, "tiles", "Tiles", (value) => (value ? format.number(value) : ""), { width: "6rem" }),
      numeric(programs, "exchange_bytes", "Exchanged", (value) => (value ? format.bytes(value) : "")),
      numeric(programs, "code_bytes", "Code", (value) => (value ? format.bytes(value) : ""), { width: "7rem" }),
    ],
    {
      label: "Programs",
      sortable: false,
      find,
      height: 22 * ROW,
      onSelect: (row) => describe(row),
      onKey: (event, row) => {
        if (row === null || !tree.children[row]) return;
        if (event.key === "ArrowRight" && !tree.open.has(row)) toggle(row);
        else if (event.key === "ArrowLeft" && tree.open.has(row)) toggle(row);
        else return;
        event.preventDefault();
      },
    },
  );

  function show(keepPlace) {
    const top = grid.body.scrollTop;
    grid.refresh();
    if (keepPlace) grid.body.scrollTop = top;
  }

  // Searching a tree shows what is around a match, too.
  function find(query) {
    const word = query.trim().toLowerCase();
    if (!word) return { rows: tree.visible(), count: `${plain.format(programs.rows)} programs` };
    const matches = range(programs.rows).filter((row) =>
      `${programs.at("name", row)}\n${programs.at("type", row)}`.toLowerCase().includes(word),
    );
    return {
      rows: tree.visible(tree.withParents(matches)),
      count: `${plain.format(matches.length)} of ${plain.format(programs.rows)} programs`,
    };
  }

  function describe(row) {
    const operation = programs.at("operation", row);
    about.replaceChildren(
      h("h3", {}, programs.at("name", row)),
      smallTable(
        [],
        [
          ["Type", programs.at("type", row)],
          ["Cycles, with everything inside", format.cycles(cycles[row])],
          ...(programs.at("tile_cycles", row)
            ? [
                ["Cycles of the slowest tile", format.cycles(programs.at("tile_cycles", row))],
                [
                  "Tile balance",
                  format.share(
                    programs.at("total_cycles", row) / programs.at("tiles", row) / programs.at("tile_cycles", row),
                  ),
                ],
              ]
            : []),
          ...(operation >= 0
            ? [
                ["Operation", operations.at("name", operation)],
                ["Operator", operations.at("operator", operation)],
                ["Module", moduleName(operations.at("layer", operation))],
                ["Source", operations.reader("source", "left out")(operation) || "–"],
              ]
            : []),
        ],
      ),
    );
  }

  const ofStage = (row) => programs.at("ipu", row) >= 0;
  const levels = {
    Stages: (row) => !ofStage(row),
    Operations: (row) => programs.at("operation", row) < 0,
    Everything: () => true,
  };
  const buttons = Object.entries(levels).map(([text, isOpen]) =>
    h(
      "button",
      {
        type: "button",
        class: "button",
        onclick: () => {
          tree.openWhere(isOpen);
          show();
        },
      },
      text,
    ),
  );
  panel.append(
    card(
      "Programs of a call",
      h(
        "p",
        { class: "muted" },
        "Arrow keys move through the tree; right and left open and close. " +
          "Cycles of a program count all its turns and what is inside.",
      ),
      ...grid.parts(...buttons),
      about,
    ),
  );
  tree.openWhere(levels.Stages);
  show();
}
