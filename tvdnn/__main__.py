"""`python -m tvdnn`: the command line, from a bare checkout too."""

from tvdnn.cli import main

main()
