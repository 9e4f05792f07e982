"""`python -m purine`: the command line."""

from purine.cli import main

if __name__ == "__main__":
    main()
