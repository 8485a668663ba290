"""``pytest --doctest-glob='*.rst' docs`` runs the examples of the pages, and only these."""

collect_ignore = ["conf.py", "_build", "auto_examples", "reference/generated"]
