// The tabs: a list with one stop for the Tab key, arrow keys between them. A panel is built when it is first opened.

class Tabs {
  constructor(list, panels) {
    this.list = list;
    this.panels = panels;
    this.tabs = new Map();
    list.addEventListener("keydown", (event) => this.key(event));
  }

  /** `build` fills the panel, and may return a promise. */
  add(key, title, build) {
    const panel = h("div", {
      role: "tabpanel",
      id: `panel-${key}`,
      "aria-labelledby": `tab-${key}`,
      tabindex: "0",
      hidden: true,
    });
    const tab = h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${key}`,
        "aria-controls": panel.id,
        "aria-selected": "false",
        tabindex: "-1",
        onclick: () => this.open(key),
      },
      title,
    );
    this.tabs.set(key, { tab, panel, build, built: null });
    this.list.append(tab);
    this.panels.append(panel);
  }

  async open(key) {
    const wanted = this.tabs.get(key);
    for (const { tab, panel } of this.tabs.values()) {
      const on = tab === wanted.tab;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel.hidden = !on;
    }
    this.current = key;
    wanted.built ??= Promise.resolve(wanted.build(wanted.panel));
    await wanted.built;
    wanted.panel.setAttribute("data-ready", "");
    if (this.remembers) this.remember(key);
    this.remembers = true; // the first one is what the address says, or the default
    window.dispatchEvent(new Event("resize")); // charts that were drawn while hidden take their size
  }

  /** The address of the page names what is open, so that it can be sent to others. */
  remember(key, query = "") {
    history.replaceState(null, "", `#${key}${query ? `?${encodeURIComponent(query)}` : ""}`);
  }

  /** Forget what is in the panels, and build the open one anew. */
  async refresh() {
    for (const it of this.tabs.values()) {
      it.built = null;
      it.panel.replaceChildren();
      it.panel.removeAttribute("data-ready");
    }
    await this.open(this.current);
  }

  key(event) {
    const keys = [...this.tabs.keys()],
      here = keys.indexOf(this.current),
      last = keys.length - 1;
    const next = {
      ArrowRight: here === last ? 0 : here + 1,
      ArrowLeft: here === 0 ? last : here - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.open(keys[next]);
    this.tabs.get(keys[next]).tab.focus();
  }
}
