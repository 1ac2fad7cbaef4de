"use strict";
(() => {
  const at = id => document.getElementById(id);
  const span = 5; // seconds that rates are of
  let states = [], source = null;

  const cell = (tag, text, ...classes) => {
    const e = document.createElement(tag);
    e.textContent = text; // it may be what a stranger has sent
    if (classes.length) e.className = classes.join(" ");
    if (tag === "th") e.scope = "row";
    return e;
  };
  const row = (...cells) => { const tr = document.createElement("tr"); tr.append(...cells); return tr; };
  const count = n => n.toLocaleString("en");

  // rate is what a total has grown by, a second. A total that has shrunk is that of another process, or has begun anew.
  const rate = (name, of, now) => {
    const old = states[0], before = old.rules.find(r => r.name === name), seconds = now.time - old.time;
    const last = now.rules.find(r => r.name === name);
    if (!before || seconds <= 0 || last[of] < before[of]) return null;
    return (last[of] - before[of]) / seconds;
  };
  const rateText = r => r === null ? "-" : r.toLocaleString("en", { maximumFractionDigits: r < 10 ? 1 : 0 });

  function show(state) {
    states.push(state);
    while (states.length > 2 && states[1].time <= state.time - span) states.shift();
    at("rules").replaceChildren(...state.rules.map(r => {
      const admitted = rate(r.name, "admitted", state), denied = rate(r.name, "denied", state);
      return row(cell("th", r.name), cell("td", rateText(admitted), "n"), cell("td", rateText(denied), "n", ...(denied > 0 ? ["some"] : [])),
        cell("td", count(r.admitted), "n"), cell("td", count(r.denied), "n"));
    }));
    at("more").textContent = state.more ? count(state.more) + " more rules have fewer denied hits" : "";
    at("keys").replaceChildren(...state.keys.map(k => row(cell("th", k.key), cell("td", k.rule), cell("td", count(k.denied), "n"))));
    at("store").replaceChildren(...state.store.map(s =>
      cell("li", s.name + ": " + s.mode + (s.since ? " since " + new Date(s.since * 1e3).toISOString().slice(0, 19).replace("T", " ") + " UTC" : ""))));
    document.documentElement.dataset.states = Number(document.documentElement.dataset.states || 0) + 1;
  }

  const say = text => { if (at("status").textContent !== text) at("status").textContent = text; };

  function watch() {
    states = [];
    source = new EventSource("/live/events");
    source.onopen = () => say("live");
    source.onmessage = e => show(JSON.parse(e.data));
    source.onerror = () => {
      states = [];
      if (source.readyState !== EventSource.CLOSED) return say("connecting"); // the browser tries again
      say("the service takes no more watchers: reload the page to try again");
    };
  }
  at("pause").addEventListener("click", () => {
    const pause = source !== null;
    at("pause").setAttribute("aria-pressed", String(pause));
    if (pause) { source.close(); source = null; say("paused"); } else { say("connecting"); watch(); }
  });
  watch();
})();
