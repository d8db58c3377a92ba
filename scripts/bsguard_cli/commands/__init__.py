"""The subcommands, one a module; each has its `command`."""
