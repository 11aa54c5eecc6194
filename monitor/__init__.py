"""What `mon` shows: a picture of the cluster as one node's daemon reports it, drawn on a terminal or a page, free of how it was got.

`picture.py` and all that draws from it (`drawings/`) are pure; `live/` alone knows textual, `web/` is for `mon --web`.
"""
