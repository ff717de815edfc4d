"""`python -m kvcheck`."""

from kvcheck.cli.main import main

if __name__ == "__main__":
    main()
