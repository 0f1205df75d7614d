"""The installed command ``fedtaper``: the package is imported here, so that Ctrl-C is quiet."""

import signal


def main() -> None:
    """Import the package and run the command; Ctrl-C during the import ends it without a trace."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedtaper.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
