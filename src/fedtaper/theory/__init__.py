"""The theorem as tools: assumptions, the terms of the bound, noise sums, probability one."""
