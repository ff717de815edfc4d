"""`python -m kvcheck`."""

from kvcheck.cli import main

if __name__ == "__main__":
    main()
