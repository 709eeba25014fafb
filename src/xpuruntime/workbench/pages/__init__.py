"""Interactive HTML pages of plans, receipts, diffs and bisections: a graph, a timeline, a roofline plot and a table of nodes."""
