"""The functions behind the command line: compare, bench, doctor and others. They return values with ``to_json()``.

Notebooks can call them, too. Nothing here prints, exits or reads ``sys.argv``.
"""
