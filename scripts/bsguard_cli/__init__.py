"""The command `bsguard`: what people run beside their training job, never inside it.

Reading order: main.py (the command and its exit codes), reading.py and records.py (files that anybody may have written),
runs.py (a run and its ranks), then one module a subcommand in commands/. It reads what a run left behind and depends on the
library for nothing but its path; nothing here is imported by a training process.
"""
