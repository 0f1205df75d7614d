"""A small experiment as a TOML file, for the tests that need one."""

FILE = """
[experiment]
rounds = 30
local_steps = 3
batch_size = 5
[problem]
kind = "linear"
num_clients = 3
samples = 50
feature_spread = 1.0
[[schedules]]
c = 0.1
delta = 0.8
clients = 3
"""

TWO_SITES = """
[experiment]
rounds = 2
local_steps = 2
[problem]
kind = "linear"
num_clients = 2
[[schedules]]
c = 0.01
delta = 0.8
clients = 2
"""

THREE = """
[problem]
kind = "linear"
num_clients = 3
samples = 200
[schedules]
c = 0.01
delta = 0.76
[experiment]
local_steps = 5
rounds = 4
"""  # further settings of the experiment may follow
