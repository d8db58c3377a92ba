"""python -m bsguard_cli"""

from bsguard_cli.main import main

if __name__ == "__main__":
    main()
