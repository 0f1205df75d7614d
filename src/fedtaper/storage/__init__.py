"""Run folders, TOML files and logs."""
