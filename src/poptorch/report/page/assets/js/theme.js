// Dark and light: the system's choice, unless the reader makes one.

const theme = {
  listeners: [],
  system: matchMedia("(prefers-color-scheme: dark)"),
  chosen: "system",

  get dark() {
    return this.chosen === "dark" || (this.chosen === "system" && this.system.matches);
  },

  apply() {
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
    for (const listener of this.listeners) listener();
  },

  start() {
    const box = document.getElementById("theme");
    try {
      this.chosen = localStorage.getItem("poptorch-report-theme") ?? "system";
    } catch {
      // Pages from disk may not keep anything: the choice then lasts as long as the page.
    }
    box.value = this.chosen;
    box.addEventListener("change", () => {
      this.chosen = box.value;
      try {
        localStorage.setItem("poptorch-report-theme", box.value);
      } catch {
        // As above.
      }
      this.apply();
    });
    this.system.addEventListener("change", () => this.apply());
    this.apply();
  },
};

// Colours that can be told apart on dark and on light ground. Phases have those that IPU users know.
const PHASES = {
  compute: "#d1495b",
  exchange: "#3d7dd8",
  sync: "#e0b030",
  "host exchange": "#8e5bbf",
  "global exchange": "#2a9d8f",
  "streaming memory": "#d97724",
  stage: "#6b7f99",
  module: "#86a3c3",
  operation: "#a9b8c9",
};
const PALETTE = [
  "#3d7dd8",
  "#d97724",
  "#2a9d8f",
  "#d1495b",
  "#8e5bbf",
  "#a0712f",
  "#d66bb0",
  "#7f8c99",
  "#a3a833",
  "#2fa8c7",
  "#5a9e3e",
  "#c2a37a",
  "#586ee0",
  "#e0b030",
];
const colourOf = (index) => PALETTE[index % PALETTE.length];
