from fdbqueue.operate.cli import main

if __name__ == "__main__":
    main()
