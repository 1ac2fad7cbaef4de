"use strict";
(() => {
  const at = id => document.getElementById(id);
  const span = 5; // seconds that rates are of
  let states = [], source = null, shown = "", plot = null, drawn = 0, lastAnswer = "";

  const cell = (tag, text, ...classes) => {
    const e = document.createElement(tag);
    e.textContent = text; // it may be what a stranger has sent
    if (classes.length) e.className = classes.join(" ");
    if (tag === "th") e.scope = "row";
    return e;
  };
  const row = (...cells) => { const tr = document.createElement("tr"); tr.append(...cells); return tr; };
  const count = n => n.toLocaleString("en");
  const utc = seconds => new Date(seconds * 1e3).toISOString().slice(0, 19).replace("T", " ");

  // rate is what a total has grown by, a second. A total that has shrunk is that of another process, or has begun anew.
  const rate = (name, of, now) => {
    const old = states[0], before = old.rules.find(r => r.name === name), seconds = now.time - old.time;
    const last = now.rules.find(r => r.name === name);
    if (!before || seconds <= 0 || last[of] < before[of]) return null;
    return (last[of] - before[of]) / seconds;
  };
  const rateText = r => r === null ? "-" : r.toLocaleString("en", { maximumFractionDigits: r < 10 ? 1 : 0 });

  const upText = seconds => {
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    return "\u00b7 up " + (days ? days + " d " + hours % 24 + " h" : hours ? hours + " h " + minutes % 60 + " min" : minutes ? minutes + " min" : Math.floor(seconds) + " s");
  };

  // ruleName is a button that shows the rule in the chart. The rows are made anew each second, so focus is put back by name.
  const ruleName = name => {
    const th = cell("th", ""), b = document.createElement("button");
    b.type = "button";
    b.className = "rule";
    b.textContent = name;
    b.setAttribute("aria-pressed", String(name === shown));
    b.addEventListener("click", () => choose(name));
    th.append(b);
    return th;
  };

  function rows(state) {
    const focused = document.activeElement?.className === "rule" ? document.activeElement.textContent : null;
    at("rules").replaceChildren(...state.rules.map(r => {
      const admitted = rate(r.name, "admitted", state), denied = rate(r.name, "denied", state);
      return row(ruleName(r.name), cell("td", r.limit), cell("td", rateText(admitted), "n"), cell("td", rateText(denied), "n", ...(denied > 0 ? ["some"] : [])),
        cell("td", count(r.admitted), "n"), cell("td", count(r.denied), "n"));
    }));
    if (focused !== null) [...at("rules").querySelectorAll(".rule")].find(b => b.textContent === focused)?.focus();
  }

  function show(state) {
    states.push(state);
    while (states.length > 2 && states[1].time <= state.time - span) states.shift();
    lastAnswer = utc(state.time);
    rows(state);
    at("more").textContent = state.more ? count(state.more) + " more rules have fewer denied hits" : "";
    at("up").textContent = upText(state.time - state.started);
    at("holds").textContent = (state.holds.open < 0 ? "" : count(state.holds.open) + (state.holds.open === 1 ? " hold is open, " : " holds are open, ")) +
      count(state.holds.made) + (state.holds.made === 1 ? " was made" : " were made") + (state.holds.open < 0 ? ": holds" : "");
    at("holds").hidden = state.holds.made === 0;
    at("keys").replaceChildren(...state.keys.map(k => row(cell("th", k.key), cell("td", k.rule), cell("td", count(k.denied), "n"))));
    at("store").replaceChildren(...state.store.map(s =>
      cell("li", s.name + ": " + s.mode + (s.since ? ", since " + utc(s.since) + " UTC" : ""), ...(s.bad ? ["some"] : []))));
    if (state.time - drawn >= span) { drawn = state.time; past(); }
    document.documentElement.dataset.states = Number(document.documentElement.dataset.states || 0) + 1;
  }

  // draw makes the chart for the rates.
  function draw(data) {
    const style = getComputedStyle(document.documentElement), color = name => style.getPropertyValue("--" + name).trim();
    const font = "13px system-ui, sans-serif", short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
    const axis = { stroke: color("text"), font, grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 } };
    const value = (u, v) => v == null ? "" : short.format(v) + "/s";
    const end = data.time.at(-1) ?? Date.now() / 1e3;
    plot?.destroy();
    plot = new uPlot({
      width: at("chart").clientWidth, height: 220,
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      scales: { x: { time: true, range: () => [end - 900, end] }, y: { range: (u, min, max) => [0, max > 0 ? max * 1.05 : 1] } },
      axes: [{ ...axis, space: 70, values: (u, ticks) => ticks.map(t => utc(t).slice(11, 16)) }, { ...axis, values: (u, ticks) => ticks.map(t => short.format(t)) }],
      series: [
        { label: "time (UTC)", value: (u, v) => v == null ? "" : utc(v).slice(11) },
        { label: "admitted", stroke: color("focus"), width: 2, value, points: { show: false } },
        { label: "denied", stroke: color("denied"), width: 2, dash: [6, 3], value, points: { show: false } },
      ],
    }, [data.time, data.admitted, data.denied], at("chart"));
    document.documentElement.dataset.points = data.time.length;
  }
  let last = { time: [], admitted: [], denied: [] };
  async function past() {
    const of = shown;
    try {
      const answer = await fetch("/live/history" + (of ? "?rule=" + encodeURIComponent(of) : ""));
      const data = await answer.json();
      if (of === shown) draw(last = data);
    } catch { /* the stream says that the service is gone */ }
  }
  function choose(name) {
    shown = name;
    at("of").textContent = name || "all rules";
    at("all").hidden = !name;
    if (states.length) rows(states.at(-1));
    past();
  }
  at("all").addEventListener("click", () => choose(""));
  addEventListener("resize", () => draw(last));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(last));

  const say = text => { if (at("status").textContent !== text) at("status").textContent = text; };

  // stale greys what is not of now, and takes the rates away.
  function stale(yes) {
    at("main").classList.toggle("stale", yes);
    if (yes && states.length) {
      states = [states.at(-1)];
      rows(states[0]);
    }
  }

  function watch() {
    states = [];
    source = new EventSource("/live/events");
    source.onopen = () => { say("live"); stale(false); drawn = 0; };
    source.onmessage = e => show(JSON.parse(e.data));
    source.onerror = () => {
      stale(true);
      states = [];
      if (source.readyState !== EventSource.CLOSED) return say(lastAnswer ? "no answer since " + lastAnswer + " UTC: trying again" : "connecting"); // the browser tries again
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
