"""`python -m kvcli`."""

from kvcli.cli.app import main

if __name__ == "__main__":
    main()
