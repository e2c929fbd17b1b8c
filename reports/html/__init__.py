"""A report as one HTML file that needs nothing else: no network, no other file.

`page` fills the template `page.html.jinja`; `curves`, `bubbles` and `runs` compute its data. Vega-Lite draws; our own
scripts sort and filter tables (`tables.js`), select what is drawn (`charts.js`) and show the runs of a cell (`runs.js`).
"""
