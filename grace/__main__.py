"""`python -m grace` is `grace`."""

from grace.cli import main

main()
