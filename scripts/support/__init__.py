"""What scripts/setup, test, demo and bench share. Standard library only: it runs before any environment was made."""
