"""Sweeps over runs and reports about them. Knows runs by their command line and their workdirs only."""
