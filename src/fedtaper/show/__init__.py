"""Everything that draws: figures and reports."""
