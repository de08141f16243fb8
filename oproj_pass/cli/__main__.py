"""`python -m oproj_pass.cli`: the command `oproj`, where its script is not on the path."""

from oproj_pass.cli.main import main

if __name__ == "__main__":
    main()
