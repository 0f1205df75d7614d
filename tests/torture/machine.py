"""The stateful machine of ``tests/test_resume.py``, for longer.

``python -m torture.machine COUNT`` goes through so many sequences of running, stopping, resuming,
adding rounds, loading and damaging.
"""

import sys
import unittest
import warnings
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))
import test_resume

from torture import limits


def main(count=200):
    warnings.simplefilter("ignore")
    test_resume.TestFolder.settings = settings(
        max_examples=count, stateful_step_count=20, deadline=None, derandomize=True, database=None
    )
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_resume.TestFolder)
    found = unittest.TextTestRunner(verbosity=0).run(suite)
    for _, trouble in [*found.failures, *found.errors]:
        print(trouble)
    print(f"{count} sequences of at most 20 steps, {len(found.failures) + len(found.errors)} wrong")
    return not found.wasSuccessful() or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
