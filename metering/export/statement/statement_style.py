"""How a statement looks, on a screen and on paper. Pure.

Widths are shares of the page and no paper is named, so that A4 and Letter both do; heads of tables are repeated on each
page and rows are not cut. Page numbers stand where a browser knows margin boxes. All text has a contrast of 4.5 : 1 or
more to what is behind it (WCAG 2.2, AA).
"""

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --grey: #57606a; --line: #d0d7de; --head: #f3f5f7;
  --mark: #0b5f6f; --note: #fff8e5; }
* { box-sizing: border-box; }
html { font: 10.5pt/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
body { color: var(--ink); background: #fff; margin: 0 auto; max-width: 62rem; padding: 2rem 1.5rem 3rem; }
header { display: flex; justify-content: space-between; align-items: flex-start; gap: 2rem;
  border-bottom: 3px solid var(--mark); padding-bottom: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; break-after: avoid; color: var(--mark); }
p { margin: .3rem 0 .6rem; max-width: 48rem; }
.by { color: var(--grey); margin: 0; overflow-wrap: anywhere; }
.total { text-align: right; flex: none; }
.total .label { color: var(--grey); }
.total .amount { font-size: 1.7rem; line-height: 1.2; font-weight: 600; }
.state { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .7rem;
  font-weight: 600; }
.note { border-left: 4px solid #9a6700; background: var(--note); padding: .5rem .9rem; max-width: none;
  break-inside: avoid; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 1rem 0 0; }
dt { color: var(--grey); }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: .7rem 0 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--grey); padding: 0 0 .4rem; break-after: avoid; }
thead { display: table-header-group; }
tr { break-inside: avoid; }
th, td { padding: .28rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: .2rem; }
thead th { background: var(--head); border-bottom: 1px solid var(--grey); font-weight: 600; font-size: .92em; }
tbody th { font-weight: 400; overflow-wrap: anywhere; }
.n { text-align: right; white-space: nowrap; }
tr.sum { break-before: avoid; }
tr.sum th, tr.sum td { border-top: 1.5px solid var(--ink); border-bottom: 0; font-weight: 600; }
.whole { white-space: nowrap; }
.tail { color: var(--grey); font-size: .78em; font-weight: 400; }
.none { color: var(--grey); }
.hash { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .9em; }
.wide { overflow-x: auto; }
footer { margin-top: 2.5rem; padding-top: .6rem; border-top: 1px solid var(--line); color: var(--grey);
  font-size: .9em; }
@page { margin: 16mm 14mm 18mm; @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; } }
@media print {
  html { font-size: 8.6pt; }
  body { max-width: none; padding: 0; }
  .wide { overflow: visible; }
  thead th, .note { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
