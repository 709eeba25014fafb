"""The workbench: compare, bench, doctor and the like, as plain functions that return values with ``to_json()``.

The command line prints them; a notebook calls them. Nothing here prints, exits or reads ``sys.argv``.
"""
