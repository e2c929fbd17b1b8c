"""A report as one HTML file that needs nothing else: no network, no other file.

`page` puts it together; `curves`, `bubbles` and `runs` are what stands in it besides the tables. `page.html.jinja`,
`page.css` and the scripts are its parts: Vega-Lite draws, a few lines of JavaScript of our own sort and filter tables
(`tables.js`), choose what is drawn (`charts.js`) and show what is behind a cell (`runs.js`).
"""
