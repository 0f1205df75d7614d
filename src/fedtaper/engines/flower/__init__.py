"""The same Experiment on Flower: a ServerApp and a ClientApp around the library's own objects.

``client.py`` is what a site does in a round, ``rounds.py`` what the server does, ``roster.py``
who is there, ``guard.py`` which answers count. No equation lives here: local updates are the
engines' own, the step sizes the experiment's, the aggregation the server rule's, and the record
of rounds, checkpoints and run folder those of :func:`fedtaper.run`, which drives the rounds.
"""
