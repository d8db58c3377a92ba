"""The demo. options.py: what may be asked; runs.py: starts the runs; measure.py: reads what they left; story.py: shows.

train.py is the job, by_hand.py the same job with hand-written accumulation: these two are scripts of their own.
"""
