"""What `mon` shows: a picture of the cluster as one node's daemon tells it, drawn on a terminal or a page, free of how it was got.

`picture.py` and all that draws from it (`pieces.py`, `table.py`, `chart.py`, `timeline.py`, `processes.py`, `frames.py`) are pure;
`app.py`, `screen.py`, `screens.py`, `pages.py` and `canvas.py` alone know textual, `server.py`, `loopback.py` and
`metrics.py` are for `mon --web`, `web/` is the page.
"""
