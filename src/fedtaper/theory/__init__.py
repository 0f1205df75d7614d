"""The theorem as tools: assumptions, the bound's terms, noise sums, probability one."""
