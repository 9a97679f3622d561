from fdbqueue.operate.cli import main

main()
