"""The report's style sheet. Colours are variables: the figures use them too, and a dark theme only redefines them.

Series colours follow Okabe and Ito's palette, which stays apart under the common forms of colour blindness.
"""

CSS = """
:root {
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  --paper: #ffffff; --panel: #f7f7f5; --ink: #1d1f21; --muted: #6a6f75; --grid: #e4e4e0; --line: #dcdcd7;
  --executor: #0072b2; --designer: #c2500a; --good: #00795a; --bad: #b3261e; --heat: 0 114 178;
  --series-0: #0072b2; --series-1: #e69f00; --series-2: #009e73; --series-3: #cc79a7;
  --series-4: #56b4e9; --series-5: #d55e00; --series-6: #b8a900; --series-7: #7f7f7f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181a; --panel: #1f2225; --ink: #e8e8e6; --muted: #9aa0a6; --grid: #2c3034; --line: #363a3f;
    --executor: #56b4e9; --designer: #f0975a; --good: #4cc9a0; --bad: #ff8a80; --heat: 86 180 233;
    --series-0: #3d9bd6; --series-6: #d9cf4f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 var(--font); }
main { max-width: 1080px; margin: 0 auto; padding: 32px 28px 80px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 44px 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
p { margin: 4px 0 10px; max-width: 78ch; }
.note, figcaption { color: var(--muted); font-size: 13.5px; }
.warn { border-left: 3px solid var(--designer); padding: 6px 12px; background: var(--panel); }
svg { display: block; width: 100%; height: auto; stroke-linejoin: round; }
figure { margin: 8px 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: 14px; margin-top: 22px; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.tile .value { font-size: 25px; font-weight: 650; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tile .value small { font-size: 17px; font-weight: 500; color: var(--muted); }
.tile .label { color: var(--muted); font-size: 13px; }
.tile .detail { font-size: 13px; font-variant-numeric: tabular-nums; }
.up { color: var(--good); } .down { color: var(--bad); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 28px; align-items: start; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 18px; margin-top: 10px; }
.key { display: inline-block; margin-right: 18px; color: var(--muted); font-size: 13.5px; white-space: nowrap; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.executor { color: var(--executor); } .designer { color: var(--designer); }
i.executor { background: var(--executor); } i.designer { background: var(--designer); }
i.dot { background: var(--ink); border-radius: 50%; }
i.line { height: 3px; background: var(--muted); vertical-align: 3px; }
i.ring { background: none; border: 1.5px solid var(--ink); border-radius: 50%; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; margin-top: 8px; }
th, td { padding: 5px 12px; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--muted); } tbody th { color: var(--ink); }
th:first-child { text-align: left; padding-left: 0; }
td.heat { background: rgb(var(--heat) / var(--level)); border: 2px solid var(--paper);
  min-width: 84px; text-align: center; }
td.text { text-align: left; }
table.cross td { padding: 12px 18px; font-size: 18px; font-weight: 600; }
table.cross thead th { text-align: center; } td.heat .up, td.heat .down { color: inherit; }
table.cross td small { display: block; font-size: 12px; font-weight: 400; }
details { margin: 6px 0; }
summary { cursor: pointer; padding: 4px 0; } summary:focus-visible { outline: 2px solid var(--executor); }
pre { font: 13px/1.45 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0; padding: 8px 12px;
  background: var(--paper); border: 1px solid var(--line); border-radius: 6px; max-height: 420px; overflow: auto; }
.design { background: var(--panel); border: 1px solid var(--line); border-left: 4px solid var(--designer);
  border-radius: 8px; padding: 12px 16px; margin-top: 14px; }
.design > header { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; }
.execution { border-left: 3px solid var(--executor); padding: 0 0 0 12px; margin: 8px 0 0 2px; }
.turn { margin: 8px 0 12px 14px; }
.turn .meta { color: var(--muted); font-size: 13px; }
.tag { font-size: 12.5px; padding: 1px 8px; border-radius: 10px; border: 1px solid var(--line); color: var(--muted);
       white-space: nowrap; }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
