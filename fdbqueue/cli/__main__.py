from fdbqueue.cli import main

main()
