"""Training: from a config and a work directory to a trained, evaluated, checkpointed and logged model.

Read ``loop.train_and_evaluate`` first; it goes from top to bottom. ``setup`` is the only module that
unpacks a ``ConfigDict``; every other one takes plain arguments.
"""
